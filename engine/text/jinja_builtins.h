// Filters, tests, methods and global functions, by name. All are pure: what they may change is the
// Budget, and the state of an iterator that they use up.
//
// The tables are constants; safe from any thread.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja_value.h"

namespace galley::text::jinja {

/// `subject` is the value on the left of '|', 'is' or '.'.
using Builtin = Value (*)(Evaluator& evaluator, const Value& subject, Arguments& arguments);

struct NamedBuiltin {
  std::string_view name;
  Builtin function;
};

/// nullptr for an unknown name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
/// A method of a string, list, tuple or dictionary.
Builtin find_method(const Value& subject, std::string_view name);
/// True for methods that exist in Python but change their list or dictionary.
bool is_unsafe_method(const Value& subject, std::string_view name);
std::vector<std::string> filter_names();
std::vector<std::string> test_names();
/// range, dict, namespace, raise_exception, ...; nothing for an unknown name.
std::optional<Value> find_global(const std::string& name);

/// Parameters of a call by position or name: `names` in order, the first `required` of which must
/// be there.
class Parameters {
 public:
  Parameters(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> names, size_t required = 0);

  bool has(size_t index) const { return values_[index].has_value(); }
  const Value& value(size_t index) const { return *values_[index]; }
  Value value_or(size_t index, Value fallback) const {
    return has(index) ? *values_[index] : std::move(fallback);
  }
  /// A parameter that was given and is not none.
  bool given(size_t index) const { return has(index) && !values_[index]->is_none(); }
  bool flag(size_t index, bool fallback = false) const {
    return has(index) ? truthy(value(index)) : fallback;
  }
  /// Throws when it is no integer.
  Int integer(size_t index, Int fallback) const;
  /// Throws when it is no string.
  const std::string& string(size_t index) const;

 private:
  std::string_view function_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace galley::text::jinja
