#include "engine/text/jinja_objects.h"

#include <algorithm>

#include "engine/core/strings.h"

namespace galley::text::jinja {

Value Iterator::make(std::string name, Items items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return Value::object(std::make_shared<Iterator>(std::move(name), std::move(items), depth + 1));
}

std::string Iterator::repr(Budget&) const { return cat("<generator object ", name_, ">"); }

std::optional<Value> Iterator::next() {
  if (items_.empty()) return std::nullopt;
  Value first = items_.front();
  items_.erase(items_.begin());
  return first;
}

std::string DictView::repr(Budget& budget) const {
  return cat(name_, "(", to_repr(items_, budget), ")");
}

std::optional<Value> Group::attribute(Evaluator&, const std::string& name) {
  if (name == "grouper") return pair_.as_items()[0];
  if (name == "list") return pair_.as_items()[1];
  return std::nullopt;
}

std::optional<Value> Group::item(Evaluator& evaluator, const Value& key) {
  return evaluator.item(pair_, key);
}

Value Range::make(Int start, Int stop, Int step, Budget& budget) {
  if (step == 0) throw Failure("range() arg 3 must not be zero");
  Int distance = 0;
  if (step > 0 ? __builtin_sub_overflow(stop, start, &distance)
               : __builtin_sub_overflow(start, stop, &distance)) {
    throw Failure("an integer grew larger than 127 bits");
  }
  const Int size = step > 0 ? step : -(step + 1) + 1;
  const Int count = distance > 0 ? (distance - 1) / size + 1 : 0;
  if (count > static_cast<Int>(budget.limits().max_range)) {
    throw Failure(cat("Range too big. The sandbox blocks ranges larger than MAX_RANGE (",
                      budget.limits().max_range, ")."));
  }
  return Value::object(std::make_shared<Range>(start, stop, step, count));
}

std::string Range::repr(Budget&) const {
  std::string text = cat("range(", int_text(start_), ", ", int_text(stop_));
  if (step_ != 1) text += ", " + int_text(step_);
  return text + ")";
}

std::optional<Items> Range::iterate() {
  Items items;
  for (Int i = 0; i < count_; ++i) items.push_back(Value::integer(start_ + i * step_));
  return items;
}

std::optional<Value> Range::item(Evaluator&, const Value& key) {
  if (!key.is_integral()) return std::nullopt;
  Int at = key.as_int();
  if (at < 0) at += count_;
  if (at < 0 || at >= count_) return std::nullopt;
  return Value::integer(start_ + at * step_);
}

std::optional<Value> Range::attribute(Evaluator&, const std::string& name) {
  if (name == "start") return Value::integer(start_);
  if (name == "stop") return Value::integer(stop_);
  if (name == "step") return Value::integer(step_);
  return std::nullopt;
}

std::string Namespace::repr(Budget& budget) const {
  std::string text = "<Namespace {";
  bool first = true;
  for (const auto& [key, value] : values_) {
    if (!first) text += ", ";
    first = false;
    text += to_repr(key, budget) + ": " + to_repr(value, budget);
    budget.growing(text.size());
  }
  return text + "}>";
}

std::optional<Value> Namespace::attribute(Evaluator&, const std::string& name) {
  for (const auto& [key, value] : values_) {
    if (key.is_string() && key.as_string() == name) return value;
  }
  return std::nullopt;
}

std::optional<Value> Namespace::item(Evaluator& evaluator, const Value& key) {
  if (!key.is_string()) return std::nullopt;
  return attribute(evaluator, key.as_string());
}

void Namespace::set(const std::string& name, const Value& value) {
  check_name(name);
  for (auto& pair : values_) {
    if (pair.first.is_string() && pair.first.as_string() == name) {
      pair.second = value;
      return;
    }
  }
  values_.emplace_back(Value::string(name), value);
}

void Namespace::check_name(const std::string& name) {
  if (!name.starts_with("_")) return;
  throw Failure(
      cat("Chat templates cannot store underscore-prefixed attributes on a namespace, "
          "but got '",
          name, "'. Please rename the attribute."));
}

std::optional<Value> Loop::fetch() {
  while (at_ < items_.size()) {
    const Value item = items_[at_++];
    if (!accepts_ || accepts_(item)) return item;
  }
  return std::nullopt;
}

const std::optional<Value>& Loop::peek() {
  if (!peeked_) {
    after_ = fetch();
    peeked_ = true;
  }
  return after_;
}

std::optional<Value> Loop::advance() {
  std::optional<Value> item = peeked_ ? std::move(after_) : fetch();
  peeked_ = false;
  after_.reset();
  if (!item) return std::nullopt;
  ++index0_;
  before_ = std::move(current_);
  current_ = item;
  return item;
}

std::optional<size_t> Loop::length() const { return known_length_; }

int Loop::depth() const {
  int depth = 0;
  for (const Value& item : items_) depth = std::max(depth, item.depth());
  for (const auto* item : {&after_, &current_, &before_}) {
    if (item->has_value()) depth = std::max(depth, (*item)->depth());
  }
  return depth + 1;
}

void Loop::release() {
  items_.clear();
  at_ = 0;
  accepts_ = nullptr;
  after_.reset();
  current_.reset();
  before_.reset();
  last_changed_.reset();
  scope_.reset();
  stmt_ = nullptr;
}

std::string Loop::repr(Budget&) const {
  return cat("<LoopContext ", int_text(index0_ + 1), "/", known_length_, ">");
}

namespace {

Value loop_cycle(Evaluator&, const Value& subject, Arguments& arguments) {
  return dynamic_cast<const Loop&>(subject.as_object()).cycle(arguments);
}

Value loop_changed(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  return Value::boolean(
      dynamic_cast<Loop&>(subject.as_object()).changed(arguments, evaluator.budget()));
}

Value cycler_next(Evaluator&, const Value& subject, Arguments&) {
  auto& cycler = dynamic_cast<Cycler&>(subject.as_object());
  const Value value = cycler.current();
  cycler.step();
  return value;
}

Value cycler_reset(Evaluator&, const Value& subject, Arguments&) {
  dynamic_cast<Cycler&>(subject.as_object()).reset();
  return Value();
}

Value method_of(Object& object, std::string name, Builtin function) {
  return Function::make(std::move(name), function, Value::object(object.shared_from_this()));
}

}  // namespace

// How many items a filtered loop has is known only after all of them were tested.
void Loop::count_rest() {
  if (!accepts_) return;
  Items rest;
  while (std::optional<Value> item = fetch()) rest.push_back(*std::move(item));
  known_length_ =
      static_cast<size_t>(index0_ + 1) + rest.size() + (peeked_ && after_.has_value() ? 1 : 0);
  items_ = std::move(rest);
  at_ = 0;
  accepts_ = nullptr;
}

std::optional<Value> Loop::attribute(Evaluator&, const std::string& name) {
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!peek().has_value());
  if (name == "depth") return Value::integer(depth0_ + 1);
  if (name == "depth0") return Value::integer(depth0_);
  if (name == "cycle") return method_of(*this, name, loop_cycle);
  if (name == "changed") return method_of(*this, name, loop_changed);
  if (name == "previtem") {
    if (index0_ > 0 && before_) return before_;
    return Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    if (peek()) return after_;
    return Value::undefined("there is no next item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    count_rest();
    const auto length = static_cast<Int>(known_length_);
    return Value::integer(name == "length"     ? length
                          : name == "revindex" ? length - index0_
                                               : length - index0_ - 1);
  }
  return std::nullopt;
}

Value Loop::call(Evaluator& evaluator, Arguments& arguments) {
  if (stmt_ == nullptr) {
    throw Failure("The loop must have the 'recursive' marker to be called recursively.");
  }
  const Parameters given("loop", arguments, {"iterable"}, 1);
  const std::string text = evaluator.recurse(*stmt_, scope_, given.value(0), depth0_ + 1);
  return evaluator.autoescape() ? Value::markup(text) : Value::string(text);
}

Value Loop::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) throw Failure("no items for cycling given");
  return arguments.positional[static_cast<size_t>(index0_) % arguments.positional.size()];
}

bool Loop::changed(const Arguments& arguments, Budget& budget) {
  const Items& now = arguments.positional;
  if (last_changed_ && last_changed_->size() == now.size() &&
      std::equal(now.begin(), now.end(), last_changed_->begin(),
                 [&](const Value& a, const Value& b) { return equal(a, b, budget); })) {
    return false;
  }
  last_changed_ = now;
  return true;
}

std::string Macro::repr(Budget&) const { return cat("<Macro '", definition_.name, "'>"); }

std::optional<Value> Macro::attribute(Evaluator& evaluator, const std::string& name) {
  if (name == "name") return Value::string(definition_.name);
  if (name == "arguments") {
    Items names;
    for (const auto& parameter : definition_.parameters) {
      names.push_back(Value::string(parameter.name));
    }
    return Value::tuple(std::move(names), evaluator.budget());
  }
  if (name == "catch_kwargs") return Value::boolean(definition_.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(definition_.uses_varargs);
  if (name == "caller") return Value::boolean(definition_.uses_caller);
  return std::nullopt;
}

Value Function::make(std::string name, Builtin function, Value subject) {
  return Value::object(std::make_shared<Function>(std::move(name), function, std::move(subject)));
}

std::string Function::repr(Budget&) const { return cat("<built-in ", name_, ">"); }

std::optional<Value> Cycler::attribute(Evaluator&, const std::string& name) {
  if (name == "current") return current();
  if (name == "next") return method_of(*this, name, cycler_next);
  if (name == "reset") return method_of(*this, name, cycler_reset);
  return std::nullopt;
}

}  // namespace galley::text::jinja
