#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_objects.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_tables.h"

namespace galley::text::jinja {

namespace {

Value view(Evaluator& evaluator, const char* name, Items items) {
  return Value::object(
      std::make_shared<DictView>(name, Value::list(std::move(items), evaluator.budget())));
}

Value dict_keys(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters none("keys", arguments, {});
  Items items;
  for (const auto& pair : subject.as_pairs()) items.push_back(pair.first);
  return view(evaluator, "dict_keys", std::move(items));
}

Value dict_values(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters none("values", arguments, {});
  Items items;
  for (const auto& pair : subject.as_pairs()) items.push_back(pair.second);
  return view(evaluator, "dict_values", std::move(items));
}

Value dict_items(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters none("items", arguments, {});
  Items items;
  for (const auto& [key, value] : subject.as_pairs()) {
    items.push_back(Value::tuple({key, value}, evaluator.budget()));
  }
  return view(evaluator, "dict_items", std::move(items));
}

Value dict_get(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("get", arguments, {"key", "default"}, 1);
  const Value& key = given.value(0);
  if (!hashable(key)) throw Failure(cat("unhashable type: '", type_name(key), "'"));
  const Value* found = find(subject, key, evaluator.budget());
  return found != nullptr ? *found : given.value_or(1, Value());
}

Value copy(Evaluator&, const Value& subject, Arguments& arguments) {
  const Parameters none("copy", arguments, {});
  return subject;
}

Value dict_fromkeys(Evaluator& evaluator, const Value&, Arguments& arguments) {
  const Parameters given("fromkeys", arguments, {"iterable", "value"}, 1);
  Pairs pairs;
  for (const Value& key : iterate(given.value(0), evaluator.budget())) {
    pairs.emplace_back(key, given.value_or(1, Value()));
  }
  return Value::dict(std::move(pairs), evaluator.budget());
}

Value sequence_index(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("index", arguments, {"value", "start", "stop"}, 1);
  const Items& items = subject.as_items();
  const SliceRange range = slice_range(static_cast<Int>(items.size()), given.value_or(1, Value()),
                                       given.value_or(2, Value()), Value());
  for (Int i = range.start; i < range.start + range.count; ++i) {
    if (equal(items[static_cast<size_t>(i)], given.value(0), evaluator.budget())) {
      return Value::integer(i);
    }
  }
  throw Failure(cat(to_repr(given.value(0), evaluator.budget()), " is not in list"));
}

Value sequence_count(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("count", arguments, {"value"}, 1);
  Int count = 0;
  for (const Value& item : subject.as_items()) {
    if (equal(item, given.value(0), evaluator.budget())) ++count;
  }
  return Value::integer(count);
}

constexpr NamedBuiltin kDictMethods[] = {
    {"copy", copy},        {"fromkeys", dict_fromkeys}, {"get", dict_get},
    {"items", dict_items}, {"keys", dict_keys},         {"values", dict_values},
};

constexpr NamedBuiltin kSequenceMethods[] = {
    {"copy", copy}, {"count", sequence_count}, {"index", sequence_index}};

}  // namespace

std::span<const NamedBuiltin> dict_methods() { return kDictMethods; }
std::span<const NamedBuiltin> sequence_methods() { return kSequenceMethods; }

}  // namespace galley::text::jinja
