// Filters that take lists.
#include <algorithm>

#include "engine/core/strings.h"
#include "engine/text/jinja_evaluator.h"
#include "engine/text/jinja_objects.h"
#include "engine/text/jinja_operators.h"
#include "engine/text/jinja_tables.h"
#include "engine/text/jinja_unicode.h"

namespace galley::text::jinja {

namespace {

// Jinja's attribute paths: "a.b.0" names an item of an attribute of an attribute.
Items path_of(const Value& attribute, Evaluator& evaluator) {
  Items path;
  if (attribute.is_none()) return path;
  if (!attribute.is_string()) return {attribute};
  for (const std::string& part : split(attribute.as_string(), '.')) {
    const auto number = parse_int(part);
    const bool digits = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    path.push_back(digits && number ? Value::integer(*number) : Value::string(part));
  }
  evaluator.budget().items(path.size());
  return path;
}

// The value at a path; `fallback`, when not none, stands for undefined steps.
Value at_path(Evaluator& evaluator, Value value, const Items& path, const Value& fallback = {}) {
  for (const Value& part : path) {
    value = evaluator.item(value, part);
    if (!fallback.is_none() && value.is_undefined()) value = fallback;
  }
  return value;
}

Value ignore_case(const Value& value, bool ignore) {
  return ignore && value.is_string() ? Value::string(to_lower(value.as_string())) : value;
}

Value first(Evaluator& evaluator, const Value& subject, Arguments&) {
  if (subject.is_object()) {
    if (auto* iterator = dynamic_cast<Iterator*>(&subject.as_object())) {
      if (std::optional<Value> item = iterator->next()) return *item;
      return Value::undefined("No first item, sequence was empty.");
    }
  }
  const Items items = iterate(subject, evaluator.budget());
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(Evaluator& evaluator, const Value& subject, Arguments&) {
  if (subject.is_object() && !subject.as_object().length()) {
    throw Failure(cat("'", type_name(subject), "' object is not reversible"));
  }
  const Items items = iterate(subject, evaluator.budget());
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(Evaluator& evaluator, const Value& subject, Arguments&) {
  return Value::list(iterate(subject, evaluator.budget()), evaluator.budget());
}

Value reverse(Evaluator& evaluator, const Value& subject, Arguments&) {
  Budget& budget = evaluator.budget();
  if (subject.is_string()) {
    return slice(subject, Value(), Value(), Value::integer(-1), budget);
  }
  Items items = iterate(subject, budget);
  std::reverse(items.begin(), items.end());
  return Iterator::make("reversed", std::move(items));
}

Value join_filter(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("join", arguments, {"d", "attribute"});
  Budget& budget = evaluator.budget();
  Items items = iterate(subject, budget);
  if (given.given(1)) {
    const Items path = path_of(given.value(1), evaluator);
    for (Value& item : items) item = at_path(evaluator, item, path);
  }
  const Value between = given.value_or(0, Value::string(""));
  const bool is_markup =
      evaluator.autoescape() &&
      (between.is_markup() ||
       std::any_of(items.begin(), items.end(), [](const Value& item) { return item.is_markup(); }));
  const auto text_of = [&](const Value& value) {
    return is_markup ? escape(value, budget).as_string() : to_text(value, budget);
  };
  const std::string separator = text_of(between);
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += separator;
    out += text_of(items[i]);
    budget.growing(out.size());
  }
  budget.text(out.size());
  return is_markup ? Value::markup(std::move(out)) : Value::string(std::move(out));
}

Value map_filter(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  Items out;
  if (!truthy(subject)) return Iterator::make("sync_do_map", {});
  if (arguments.positional.empty() && !arguments.named.empty() &&
      std::any_of(arguments.named.begin(), arguments.named.end(),
                  [](const auto& pair) { return pair.first == "attribute"; })) {
    const Parameters given("map", arguments, {"attribute", "default"});
    const Items path = path_of(given.value(0), evaluator);
    for (const Value& item : iterate(subject, evaluator.budget())) {
      out.push_back(at_path(evaluator, item, path, given.value_or(1, Value())));
    }
    return Iterator::make("sync_do_map", std::move(out));
  }
  if (arguments.positional.empty()) throw Failure("map requires a filter argument");
  const Value name = arguments.positional[0];
  if (!name.is_string()) throw Failure("map requires the name of a filter");
  for (const Value& item : iterate(subject, evaluator.budget())) {
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    out.push_back(evaluator.filter(name.as_string(), item, rest));
  }
  return Iterator::make("sync_do_map", std::move(out));
}

// select, reject, selectattr and rejectattr.
template <bool kKeep, bool kOfAttribute>
Value select(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  Items out;
  if (!truthy(subject)) return Iterator::make("select_or_reject", {});
  Items given = arguments.positional;
  Items path;
  if (kOfAttribute) {
    if (given.empty()) throw Failure("Missing parameter for attribute name");
    path = path_of(given.front(), evaluator);
    given.erase(given.begin());
  }
  if (!given.empty() && !given.front().is_string()) {
    throw Failure("select and reject require the name of a test");
  }
  for (const Value& item : iterate(subject, evaluator.budget())) {
    Value tested = kOfAttribute ? at_path(evaluator, item, path) : item;
    if (!given.empty()) {
      Arguments rest{Items(given.begin() + 1, given.end()), arguments.named};
      tested = evaluator.test(given.front().as_string(), tested, rest);
    }
    if (truthy(tested) == kKeep) out.push_back(item);
  }
  return Iterator::make("select_or_reject", std::move(out));
}

// Items with the key that they are sorted by.
struct Keyed {
  Value key, item;
};

void sort_by_key(std::vector<Keyed>* keyed, bool reversed, Budget& budget) {
  std::stable_sort(keyed->begin(), keyed->end(), [&](const Keyed& a, const Keyed& b) {
    return reversed ? less(b.key, a.key, budget) : less(a.key, b.key, budget);
  });
}

Value sort(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  Budget& budget = evaluator.budget();
  std::vector<Items> paths;
  if (given.given(2) && given.value(2).is_string()) {
    for (const std::string& part : split(given.value(2).as_string(), ',')) {
      paths.push_back(path_of(Value::string(part), evaluator));
    }
  } else {
    paths.push_back(path_of(given.value_or(2, Value()), evaluator));
  }
  std::vector<Keyed> keyed;
  for (Value& item : iterate(subject, budget)) {
    Items keys;
    for (const Items& path : paths) {
      keys.push_back(ignore_case(at_path(evaluator, item, path), !given.flag(1)));
    }
    keyed.push_back({Value::list(std::move(keys), budget), std::move(item)});
  }
  sort_by_key(&keyed, given.flag(0), budget);
  Items out;
  for (Keyed& entry : keyed) out.push_back(std::move(entry.item));
  return Value::list(std::move(out), budget);
}

Value dictsort(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  Budget& budget = evaluator.budget();
  if (subject.is_undefined()) fail_undefined(subject);
  if (!subject.is_dict()) throw Failure(cat("'", type_name(subject), "' is no dictionary"));
  const std::string by = given.has(1) ? given.string(1) : "key";
  if (by != "key" && by != "value") {
    throw Failure("You can only sort by either \"key\" or \"value\"");
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : subject.as_pairs()) {
    keyed.push_back({ignore_case(by == "key" ? key : value, !given.flag(0)),
                     Value::tuple({key, value}, budget)});
  }
  sort_by_key(&keyed, given.flag(2), budget);
  Items out;
  for (Keyed& entry : keyed) out.push_back(std::move(entry.item));
  return Value::list(std::move(out), budget);
}

Value unique(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("unique", arguments, {"case_sensitive", "attribute"});
  const Items path = path_of(given.value_or(1, Value()), evaluator);
  Items seen, out;
  for (const Value& item : iterate(subject, evaluator.budget())) {
    Value key = ignore_case(at_path(evaluator, item, path), !given.flag(0));
    if (!hashable(key)) throw Failure(cat("unhashable type: '", type_name(key), "'"));
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return equal(key, other, evaluator.budget());
    });
    if (known) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return Iterator::make("sync_do_unique", std::move(out));
}

template <bool kMax>
Value extreme(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given(kMax ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  Budget& budget = evaluator.budget();
  const Items path = path_of(given.value_or(1, Value()), evaluator);
  std::optional<Keyed> best;
  for (Value& item : iterate(subject, budget)) {
    Value key = ignore_case(at_path(evaluator, item, path), !given.flag(0));
    if (!best || (kMax ? less(best->key, key, budget) : less(key, best->key, budget))) {
      best = Keyed{std::move(key), std::move(item)};
    }
  }
  return best ? best->item : Value::undefined("No aggregated item, sequence was empty.");
}

Value sum(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("sum", arguments, {"attribute", "start"});
  const Items path = path_of(given.value_or(0, Value()), evaluator);
  Value total = given.value_or(1, Value::integer(0));
  if (total.is_string()) throw Failure("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : iterate(subject, evaluator.budget())) {
    total = arithmetic("+", total, at_path(evaluator, item, path), evaluator);
  }
  return total;
}

Value batch(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("batch", arguments, {"linecount", "fill_with"}, 1);
  Budget& budget = evaluator.budget();
  const Int size = given.integer(0, 1);
  Items out, row;
  const auto flush = [&] { out.push_back(Value::list(std::exchange(row, {}), budget)); };
  for (Value& item : iterate(subject, budget)) {
    if (static_cast<Int>(row.size()) == size) flush();
    row.push_back(std::move(item));
  }
  if (given.given(1) && !row.empty()) {
    if (size > static_cast<Int>(budget.limits().max_items)) budget.items(static_cast<size_t>(-1));
    while (static_cast<Int>(row.size()) < size) row.push_back(given.value(1));
  }
  if (!row.empty()) flush();
  return Iterator::make("do_batch", std::move(out));
}

Value slice_filter(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("slice", arguments, {"slices", "fill_with"}, 1);
  Budget& budget = evaluator.budget();
  const Items items = iterate(subject, budget);
  const Int slices = given.integer(0, 1);
  if (slices == 0) throw Failure("integer division or modulo by zero");
  if (slices > static_cast<Int>(budget.limits().max_items)) budget.items(static_cast<size_t>(-1));
  const size_t count = slices > 0 ? static_cast<size_t>(slices) : 0;
  Items out;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool longer = i < items.size() % count;
    const size_t end = at + items.size() / count + (longer ? 1 : 0);
    Items part(items.begin() + static_cast<ptrdiff_t>(at),
               items.begin() + static_cast<ptrdiff_t>(end));
    if (given.given(1) && !longer) part.push_back(given.value(1));
    out.push_back(Value::list(std::move(part), budget));
    at = end;
  }
  return Iterator::make("sync_do_slice", std::move(out));
}

Value groupby(Evaluator& evaluator, const Value& subject, Arguments& arguments) {
  const Parameters given("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  Budget& budget = evaluator.budget();
  const Items path = path_of(given.value(0), evaluator);
  const Value fallback = given.value_or(1, Value());
  const auto key_of = [&](const Value& item) { return at_path(evaluator, item, path, fallback); };
  std::vector<Keyed> keyed;
  for (Value& item : iterate(subject, budget)) {
    Value key = ignore_case(key_of(item), !given.flag(2));
    keyed.push_back({std::move(key), std::move(item)});
  }
  sort_by_key(&keyed, false, budget);
  Items groups;
  for (size_t begin = 0; begin < keyed.size();) {
    Items members;
    size_t end = begin;
    while (end < keyed.size() && equal(keyed[end].key, keyed[begin].key, budget)) {
      members.push_back(keyed[end++].item);
    }
    if (end == begin) members.push_back(keyed[end++].item);  // NaN equals nothing
    const Value grouper = key_of(members[0]);
    const Value list = Value::list(std::move(members), budget);
    groups.push_back(Value::object(std::make_shared<Group>(grouper, list, budget)));
    begin = end;
  }
  return Value::list(std::move(groups), budget);
}

constexpr NamedBuiltin kFilters[] = {
    {"batch", batch},
    {"dictsort", dictsort},
    {"first", first},
    {"groupby", groupby},
    {"join", join_filter},
    {"last", last},
    {"list", list_filter},
    {"map", map_filter},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"reverse", reverse},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"slice", slice_filter},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

std::span<const NamedBuiltin> list_filters() { return kFilters; }

}  // namespace galley::text::jinja
