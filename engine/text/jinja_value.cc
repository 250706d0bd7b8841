#include "engine/text/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "engine/core/json.h"
#include "engine/core/strings.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

int depth_of(const Items& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

int checked_depth(int depth, Budget& budget) {
  if (depth > budget.limits().max_value_depth) {
    throw Failure(cat("the template made values nested deeper than ",
                      budget.limits().max_value_depth, " levels"));
  }
  return depth;
}

std::shared_ptr<const ListContents> contents_of(Items items, Budget& budget) {
  budget.items(items.size());
  const int depth = checked_depth(depth_of(items), budget);
  return std::make_shared<const ListContents>(ListContents{std::move(items), depth});
}

bool equal_items(const Items& left, const Items& right, Budget& budget) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!equal(left[i], right[i], budget)) return false;
  }
  return true;
}

bool equal_dicts(const Value& left, const Value& right, Budget& budget) {
  if (left.as_pairs().size() != right.as_pairs().size()) return false;
  for (const auto& [key, value] : left.as_pairs()) {
    const Value* other = find(right, key, budget);
    if (other == nullptr || !equal(value, *other, budget)) return false;
  }
  return true;
}

[[noreturn]] void fail_order(const Value& left, const Value& right, std::string_view op) {
  throw Failure(cat("'", op, "' not supported between instances of '", type_name(left), "' and '",
                    type_name(right), "'"));
}

// -1, 0, 1, or 2 where one is not a number.
int compare_numbers(const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) {
    const Int a = left.as_int(), b = right.as_int();
    return a < b ? -1 : a > b ? 1 : 0;
  }
  const double a = left.as_double(), b = right.as_double();
  if (std::isnan(a) || std::isnan(b)) return 2;
  return a < b ? -1 : a > b ? 1 : 0;
}

int compare_items(const Value& left, const Value& right, std::string_view op, Budget& budget);

// Three-way order; 2 when the two are unordered numbers. `op` is for the message only.
int compare(const Value& left, const Value& right, std::string_view op, Budget& budget) {
  budget.step();
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  if (left.is_number() && right.is_number()) return compare_numbers(left, right);
  if (left.is_string() && right.is_string()) {
    budget.scan(std::min(left.as_string().size(), right.as_string().size()));
    const int order = left.as_string().compare(right.as_string());  // UTF-8 keeps code point order
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (left.is_sequence() && left.kind() == right.kind()) {
    return compare_items(left, right, op, budget);
  }
  fail_order(left, right, op);
}

int compare_items(const Value& left, const Value& right, std::string_view op, Budget& budget) {
  const Items &a = left.as_items(), &b = right.as_items();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!equal(a[i], b[i], budget)) return compare(a[i], b[i], op, budget);
  }
  return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

}  // namespace

Value Value::undefined(std::string message) {
  return Value(Contents(Undefined{std::make_shared<const std::string>(std::move(message))}));
}

Value Value::string(std::string text) {
  return Value(Contents(Text{std::make_shared<const std::string>(std::move(text)), false}));
}

Value Value::markup(std::string text) {
  return Value(Contents(Text{std::make_shared<const std::string>(std::move(text)), true}));
}

Value Value::string_like(const Value& like, std::string text) {
  return like.is_markup() ? markup(std::move(text)) : string(std::move(text));
}

Value Value::list(Items items, Budget& budget) {
  return Value(Contents(List{contents_of(std::move(items), budget)}));
}

Value Value::tuple(Items items, Budget& budget) {
  return Value(Contents(Tuple{contents_of(std::move(items), budget)}));
}

Value Value::dict(Pairs pairs, Budget& budget) {
  budget.items(pairs.size());
  DictContents contents;
  for (auto& [key, value] : pairs) {
    if (!hashable(key)) throw Failure(cat("unhashable type: '", type_name(key), "'"));
    contents.depth = std::max({contents.depth, key.depth() + 1, value.depth() + 1});
    auto same = std::find_if(contents.pairs.begin(), contents.pairs.end(),
                             [&](const auto& pair) { return equal(pair.first, key, budget); });
    if (same != contents.pairs.end()) {
      same->second = std::move(value);
    } else {
      contents.pairs.emplace_back(std::move(key), std::move(value));
    }
  }
  checked_depth(contents.depth, budget);
  return Value(Contents(std::make_shared<const DictContents>(std::move(contents))));
}

Value Value::from_json(const Json& json, Budget& budget) {
  switch (json.kind()) {
    case Json::Kind::kNull:
      return Value();
    case Json::Kind::kBool:
      return boolean(json.as_bool());
    case Json::Kind::kInt:
      return integer(json.as_int());
    case Json::Kind::kDouble:
      return real(json.as_double());
    case Json::Kind::kString:
      return string(json.as_string());
    case Json::Kind::kArray: {
      Items items;
      for (const Json& item : json.as_array()) items.push_back(from_json(item, budget));
      return list(std::move(items), budget);
    }
    case Json::Kind::kObject: {
      DictContents contents;  // keys are unique: the parser saw to it
      for (const auto& [key, value] : json.as_object()) {
        contents.pairs.emplace_back(string(key), from_json(value, budget));
        contents.depth = std::max(contents.depth, contents.pairs.back().second.depth() + 1);
      }
      budget.items(contents.pairs.size());
      checked_depth(contents.depth, budget);
      return Value(Contents(std::make_shared<const DictContents>(std::move(contents))));
    }
  }
  return Value();
}

const std::string& Value::undefined_message() const { return *std::get<Undefined>(value_).message; }

Int Value::as_int() const {
  if (is_bool()) return as_bool() ? 1 : 0;
  return std::get<Int>(value_);
}

double Value::as_double() const {
  if (is_integral()) return static_cast<double>(as_int());
  return std::get<double>(value_);
}

const Items& Value::as_items() const {
  if (const auto* list = std::get_if<List>(&value_)) return list->contents->items;
  return std::get<Tuple>(value_).contents->items;
}

const Pairs& Value::as_pairs() const { return std::get<Dict>(value_)->pairs; }

int Value::depth() const {
  switch (kind()) {
    case Kind::kList:
      return std::get<List>(value_).contents->depth;
    case Kind::kTuple:
      return std::get<Tuple>(value_).contents->depth;
    case Kind::kDict:
      return std::get<Dict>(value_)->depth;
    case Kind::kObject:
      return as_object().depth();
    default:
      return 0;
  }
}

bool Value::same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kUndefined:
      return std::get<Undefined>(value_).message == std::get<Undefined>(other.value_).message;
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return as_bool() == other.as_bool();
    case Kind::kInt:
      return as_int() == other.as_int();
    case Kind::kFloat:
      return as_double() == other.as_double();
    case Kind::kString:
      return is_markup() == other.is_markup() && as_string() == other.as_string();
    case Kind::kList:
    case Kind::kTuple:
      return &as_items() == &other.as_items();
    case Kind::kDict:
      return &as_pairs() == &other.as_pairs();
    case Kind::kObject:
      return &as_object() == &other.as_object();
  }
  return false;
}

std::string Object::repr(Budget&) const { return cat("<", type_name(), " object>"); }

std::optional<Value> Object::attribute(Evaluator&, const std::string&) { return std::nullopt; }

std::optional<Value> Object::item(Evaluator&, const Value&) { return std::nullopt; }

Value Object::call(Evaluator&, Arguments&) {
  throw Failure(cat("'", type_name(), "' object is not callable"));
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return "Undefined";
    case Value::Kind::kNone:
      return "NoneType";
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInt:
      return "int";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kString:
      return value.is_markup() ? "Markup" : "str";
    case Value::Kind::kList:
      return "list";
    case Value::Kind::kTuple:
      return "tuple";
    case Value::Kind::kDict:
      return "dict";
    case Value::Kind::kObject:
      return value.as_object().type_name();
  }
  return "object";
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
      return value.as_bool();
    case Value::Kind::kInt:
      return value.as_int() != 0;
    case Value::Kind::kFloat:
      return value.as_double() != 0;
    case Value::Kind::kString:
      return !value.as_string().empty();
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return !value.as_items().empty();
    case Value::Kind::kDict:
      return !value.as_pairs().empty();
    case Value::Kind::kObject:
      return value.as_object().truthy();
  }
  return false;
}

std::optional<size_t> length(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return 0;
    case Value::Kind::kString:
      return count_code_points(value.as_string());
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return value.as_items().size();
    case Value::Kind::kDict:
      return value.as_pairs().size();
    case Value::Kind::kObject:
      return value.as_object().length();
    default:
      return std::nullopt;
  }
}

bool iterable(const Value& value) {
  if (value.is_object()) return value.as_object().iterable();
  return value.is_undefined() || value.is_string() || value.is_sequence() || value.is_dict();
}

Items iterate(const Value& value, Budget& budget) {
  Items items;
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return items;
    case Value::Kind::kString: {
      const std::string& text = value.as_string();
      budget.items(count_code_points(text));
      for (size_t offset = 0; offset < text.size();) {
        const size_t begin = offset;
        next_utf8(text, &offset);
        items.push_back(Value::string(text.substr(begin, offset - begin)));
      }
      return items;
    }
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      budget.items(value.as_items().size());
      return value.as_items();
    case Value::Kind::kDict:
      budget.items(value.as_pairs().size());
      for (const auto& pair : value.as_pairs()) items.push_back(pair.first);
      return items;
    case Value::Kind::kObject:
      if (std::optional<Items> found = value.as_object().iterate()) {
        budget.items(found->size());
        return *std::move(found);
      }
      [[fallthrough]];
    default:
      throw Failure(cat("'", type_name(value), "' object is not iterable"));
  }
}

bool hashable(const Value& value) {
  if (value.kind() == Value::Kind::kList || value.is_dict()) return false;
  if (value.kind() == Value::Kind::kTuple) {
    return std::all_of(value.as_items().begin(), value.as_items().end(), hashable);
  }
  return true;
}

bool equal(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (left.is_number() && right.is_number()) return compare_numbers(left, right) == 0;
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return true;
    case Value::Kind::kString:
      budget.scan(std::min(left.as_string().size(), right.as_string().size()));
      return left.as_string() == right.as_string();
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return equal_items(left.as_items(), right.as_items(), budget);
    case Value::Kind::kDict:
      return equal_dicts(left, right, budget);
    default:
      return left.same_as(right);
  }
}

bool less(const Value& left, const Value& right, Budget& budget) {
  return compare(left, right, "<", budget) == -1;
}

bool ordered(const Value& left, const Value& right, std::string_view op, Budget& budget) {
  const int order = compare(left, right, op, budget);
  if (order == 2) return false;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

const Value* find(const Value& dict, const Value& key, Budget& budget) {
  for (const auto& pair : dict.as_pairs()) {
    if (equal(pair.first, key, budget)) return &pair.second;
  }
  return nullptr;
}

const Value* find(const Value& dict, std::string_view key, Budget& budget) {
  budget.step(static_cast<int64_t>(dict.as_pairs().size() / 16) + 1);
  for (const auto& pair : dict.as_pairs()) {
    if (pair.first.is_string() && pair.first.as_string() == key) return &pair.second;
  }
  return nullptr;
}

void fail_undefined(const Value& value) { throw Failure(value.undefined_message()); }

}  // namespace galley::text::jinja
