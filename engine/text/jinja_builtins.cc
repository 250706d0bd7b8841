#include "engine/text/jinja_builtins.h"

#include <algorithm>
#include <ctime>

#include "engine/core/strings.h"
#include "engine/text/jinja_objects.h"
#include "engine/text/jinja_tables.h"

namespace galley::text::jinja {

namespace {

Builtin find_in(std::span<const NamedBuiltin> table, std::string_view name) {
  for (const NamedBuiltin& row : table) {
    if (row.name == name) return row.function;
  }
  return nullptr;
}

void append_names(std::span<const NamedBuiltin> table, std::vector<std::string>* names) {
  for (const NamedBuiltin& row : table) names->emplace_back(row.name);
}

Value global_raise(Evaluator& evaluator, const Value&, Arguments& arguments) {
  const Parameters given("raise_exception", arguments, {"message"}, 1);
  throw Refusal(to_text(given.value(0), evaluator.budget()));
}

// Directives that Python's naive datetime leaves empty, or that C does not know.
std::string prepare_time_format(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char directive = pattern[++i];
    if (directive == 'f') {
      out += "000000";
    } else if (directive != 'z' && directive != 'Z') {
      out += '%';
      out += directive;
    }
  }
  return out;
}

Value global_strftime(Evaluator& evaluator, const Value&, Arguments& arguments) {
  const Parameters given("strftime_now", arguments, {"format"}, 1);
  // The final '.' tells an empty result from one that did not fit.
  const std::string pattern = prepare_time_format(given.string(0)) + ".";
  if (pattern.size() > 4096) throw Failure("the format of strftime_now() is too long");
  std::string text(pattern.size() * 64 + 256, '\0');
  const size_t size = std::strftime(text.data(), text.size(), pattern.c_str(), &evaluator.now());
  if (size == 0) throw Failure("strftime_now() cannot use its format");
  text.resize(size - 1);
  evaluator.budget().text(text.size());
  return Value::string(std::move(text));
}

Value global_range(Evaluator& evaluator, const Value&, Arguments& arguments) {
  const Items& given = arguments.positional;
  if (!arguments.named.empty()) throw Failure("range() takes no keyword arguments");
  if (given.empty() || given.size() > 3) {
    throw Failure(cat("range expected 1 to 3 arguments, got ", given.size()));
  }
  for (const Value& value : given) {
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_integral()) {
      throw Failure(cat("'", type_name(value), "' object cannot be interpreted as an integer"));
    }
  }
  const bool one = given.size() == 1;
  return Range::make(one ? 0 : given[0].as_int(), given[one ? 0 : 1].as_int(),
                     given.size() == 3 ? given[2].as_int() : 1, evaluator.budget());
}

// The pairs of dict(mapping or pairs, name=value, ...).
Pairs pairs_of(const char* function, Evaluator& evaluator, const Arguments& arguments) {
  Pairs pairs;
  if (arguments.positional.size() > 1) {
    throw Failure(cat(function, "() takes at most 1 positional argument"));
  }
  if (!arguments.positional.empty()) {
    const Value& first = arguments.positional[0];
    if (first.is_dict()) {
      pairs = first.as_pairs();
    } else {
      for (const Value& item : iterate(first, evaluator.budget())) {
        const Items pair = iterate(item, evaluator.budget());
        if (pair.size() != 2) {
          throw Failure(cat(function, "() needs pairs; an item has length ", pair.size()));
        }
        pairs.emplace_back(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    pairs.emplace_back(Value::string(name), value);
  }
  return pairs;
}

Value global_dict(Evaluator& evaluator, const Value&, Arguments& arguments) {
  return Value::dict(pairs_of("dict", evaluator, arguments), evaluator.budget());
}

Value global_namespace(Evaluator& evaluator, const Value&, Arguments& arguments) {
  const Value values = Value::dict(pairs_of("namespace", evaluator, arguments), evaluator.budget());
  for (const auto& pair : values.as_pairs()) {
    if (pair.first.is_string()) Namespace::check_name(pair.first.as_string());
  }
  auto space = std::make_shared<Namespace>(values.as_pairs());
  evaluator.keep(space);
  evaluator.budget().items(16);
  return Value::object(std::move(space));
}

Value global_cycler(Evaluator& evaluator, const Value&, Arguments& arguments) {
  if (arguments.positional.empty()) throw Failure("at least one item has to be provided");
  return Value::object(
      std::make_shared<Cycler>(Value::list(arguments.positional, evaluator.budget())));
}

Value global_joiner(Evaluator&, const Value&, Arguments& arguments) {
  const Parameters given("joiner", arguments, {"sep"});
  return Value::object(std::make_shared<Joiner>(given.value_or(0, Value::string(", "))));
}

constexpr NamedBuiltin kGlobals[] = {
    {"cycler", global_cycler},         {"dict", global_dict},
    {"joiner", global_joiner},         {"namespace", global_namespace},
    {"raise_exception", global_raise}, {"range", global_range},
    {"strftime_now", global_strftime},
};

}  // namespace

Builtin find_filter(std::string_view name) {
  for (const auto table : {text_filters(), list_filters(), value_filters()}) {
    if (const Builtin found = find_in(table, name)) return found;
  }
  return nullptr;
}

Builtin find_test(std::string_view name) { return find_in(all_tests(), name); }

std::vector<std::string> filter_names() {
  std::vector<std::string> names;
  for (const auto table : {text_filters(), list_filters(), value_filters()}) {
    append_names(table, &names);
  }
  return names;
}

std::vector<std::string> test_names() {
  std::vector<std::string> names;
  append_names(all_tests(), &names);
  return names;
}

Builtin find_method(const Value& subject, std::string_view name) {
  if (subject.is_string()) {
    if (const Builtin found = find_in(string_methods(), name)) return found;
    return find_in(string_predicates(), name);
  }
  if (subject.is_dict()) return find_in(dict_methods(), name);
  if (subject.is_sequence()) return find_in(sequence_methods(), name);
  return nullptr;
}

bool is_unsafe_method(const Value& subject, std::string_view name) {
  static constexpr std::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault",
                                                  "update"};
  static constexpr std::string_view kOfLists[] = {"append", "clear",  "extend",  "insert",
                                                  "pop",    "remove", "reverse", "sort"};
  const auto has = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (subject.is_dict()) return has(kOfDicts);
  return subject.kind() == Value::Kind::kList && has(kOfLists);
}

std::optional<Value> find_global(const std::string& name) {
  if (const Builtin found = find_in(kGlobals, name)) return Function::make(name, found);
  return std::nullopt;
}

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names, size_t required)
    : function_(function), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    throw Failure(cat(function, "() takes at most ", names.size(), " arguments (",
                      arguments.positional.size(), " given)"));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw Failure(cat(function, "() got an unexpected keyword argument '", name, "'"));
    }
    auto& slot = values_[static_cast<size_t>(found - names.begin())];
    if (slot) throw Failure(cat(function, "() got multiple values for argument '", name, "'"));
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i]) continue;
    throw Failure(cat(function, "() missing a required argument: '", *(names.begin() + i), "'"));
  }
}

Int Parameters::integer(size_t index, Int fallback) const {
  if (!has(index)) return fallback;
  if (value(index).is_undefined()) fail_undefined(value(index));
  if (!value(index).is_integral()) {
    throw Failure(cat(function_, "(): '", type_name(value(index)),
                      "' object cannot be interpreted as an integer"));
  }
  return value(index).as_int();
}

const std::string& Parameters::string(size_t index) const {
  if (value(index).is_undefined()) fail_undefined(value(index));
  if (!value(index).is_string()) {
    throw Failure(cat(function_, "() needs a string, not '", type_name(value(index)), "'"));
  }
  return value(index).as_string();
}

}  // namespace galley::text::jinja
