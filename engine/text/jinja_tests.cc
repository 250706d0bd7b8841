// The tests of `is`.
#include <cmath>

#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_objects.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_tables.h"

namespace galley::text::jinja {

namespace {

template <bool (*kHolds)(const Value&)>
Value of_kind(Evaluator&, const Value& subject, Arguments& arguments) {
  const Parameters none("test", arguments, {});
  return Value::boolean(kHolds(subject));
}

bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_callable(const Value& value) { return value.is_object() && value.as_object().callable(); }
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_escaped(const Value& value) { return value.is_markup(); }
bool is_false(const Value& value) { return value.is_bool() && !value.as_bool(); }
bool is_float(const Value& value) { return value.kind() == Value::Kind::kFloat; }
bool is_integer(const Value& value) { return value.kind() == Value::Kind::kInt; }
bool is_iterable(const Value& value) { return iterable(value); }
bool is_mapping(const Value& value) { return value.is_dict(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_true(const Value& value) { return value.is_bool() && value.as_bool(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }

// A length and items by position or key.
bool is_sequence(const Value& value) {
  if (value.is_object()) {
    const Object& object = value.as_object();
    return dynamic_cast<const Range*>(&object) != nullptr ||
           dynamic_cast<const Group*>(&object) != nullptr;
  }
  return value.is_string() || value.is_sequence() || value.is_dict() || value.is_undefined();
}

Value case_test(Evaluator& evaluator, const Value& subject, const char* method) {
  const Value text = Value::string(to_text(subject, evaluator.budget()));
  Arguments none;
  return find_method(text, method)(evaluator, text, none);
}
Value is_lower_text(Evaluator& evaluator, const Value& subject, Arguments&) {
  return case_test(evaluator, subject, "islower");
}
Value is_upper_text(Evaluator& evaluator, const Value& subject, Arguments&) {
  return case_test(evaluator, subject, "isupper");
}

bool divides(Evaluator& evaluator, const Value& subject, const Value& by, Int rest) {
  return equal(arithmetic("%", subject, by, evaluator), Value::integer(rest), evaluator.budget());
}
Value is_odd(Evaluator& evaluator, const Value& subject, Arguments&) {
  return Value::boolean(divides(evaluator, subject, Value::integer(2), 1));
}
Value is_even(Evaluator& evaluator, const Value& subject, Arguments&) {
  return Value::boolean(divides(evaluator, subject, Value::integer(2), 0));
}
Value is_divisible(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("divisibleby", arguments, {"num"}, 1);
  return Value::boolean(divides(evaluator, subject, given.value(0), 0));
}

Value is_filter(Evaluator&, const Value& subject, Arguments&) {
  return Value::boolean(subject.is_string() && find_filter(subject.as_string()) != nullptr);
}
Value is_test(Evaluator&, const Value& subject, Arguments&) {
  return Value::boolean(subject.is_string() && find_test(subject.as_string()) != nullptr);
}

Value is_same(Evaluator&, const Value& subject, Arguments& arguments) {
  const Parameters given("sameas", arguments, {"other"}, 1);
  return Value::boolean(subject.same_as(given.value(0)));
}
Value is_in(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("in", arguments, {"seq"}, 1);
  return Value::boolean(contains(given.value(0), subject, evaluator.budget()));
}

template <bool kEqual>
Value is_equal(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("eq", arguments, {"other"}, 1);
  return Value::boolean(equal(subject, given.value(0), evaluator.budget()) == kEqual);
}

Value compare(Evaluator& evaluator, const Value& subject, Arguments& arguments, const char* op) {
  const Parameters given(op, arguments, {"other"}, 1);
  return Value::boolean(ordered(subject, given.value(0), op, evaluator.budget()));
}
Value is_less(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  return compare(evaluator, subject, arguments, "<");
}
Value is_at_most(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  return compare(evaluator, subject, arguments, "<=");
}
Value is_greater(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  return compare(evaluator, subject, arguments, ">");
}
Value is_at_least(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  return compare(evaluator, subject, arguments, ">=");
}

constexpr NamedBuiltin kTests[] = {
    {"boolean", of_kind<is_boolean>},
    {"callable", of_kind<is_callable>},
    {"defined", of_kind<is_defined>},
    {"divisibleby", is_divisible},
    {"eq", is_equal<true>},
    {"equalto", is_equal<true>},
    {"==", is_equal<true>},
    {"escaped", of_kind<is_escaped>},
    {"even", is_even},
    {"false", of_kind<is_false>},
    {"filter", is_filter},
    {"float", of_kind<is_float>},
    {"ge", is_at_least},
    {">=", is_at_least},
    {"greaterthan", is_greater},
    {"gt", is_greater},
    {">", is_greater},
    {"in", is_in},
    {"integer", of_kind<is_integer>},
    {"iterable", of_kind<is_iterable>},
    {"le", is_at_most},
    {"<=", is_at_most},
    {"lessthan", is_less},
    {"lower", is_lower_text},
    {"lt", is_less},
    {"<", is_less},
    {"mapping", of_kind<is_mapping>},
    {"ne", is_equal<false>},
    {"!=", is_equal<false>},
    {"none", of_kind<is_none>},
    {"number", of_kind<is_number>},
    {"odd", is_odd},
    {"sameas", is_same},
    {"sequence", of_kind<is_sequence>},
    {"string", of_kind<is_string>},
    {"test", is_test},
    {"true", of_kind<is_true>},
    {"undefined", of_kind<is_undefined>},
    {"upper", is_upper_text},
};

}  // namespace

std::span<const NamedBuiltin> all_tests() { return kTests; }

}  // namespace galley::text::jinja
