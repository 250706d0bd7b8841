// Internal: the tables of builtins, each defined in the file that holds its functions.
#pragma once

#include <span>

#include "engine/text/jinja_builtins.h"

namespace galley::text::jinja {

std::span<const NamedBuiltin> text_filters();       // jinja_text_filters.cc
std::span<const NamedBuiltin> list_filters();       // jinja_list_filters.cc
std::span<const NamedBuiltin> value_filters();      // jinja_value_filters.cc
std::span<const NamedBuiltin> all_tests();          // jinja_tests.cc
std::span<const NamedBuiltin> string_methods();     // jinja_string_methods.cc
std::span<const NamedBuiltin> string_predicates();  // jinja_string_predicates.cc
std::span<const NamedBuiltin> dict_methods();       // jinja_collection_methods.cc
std::span<const NamedBuiltin> sequence_methods();   // jinja_collection_methods.cc

/// json.dumps(value, ...) of Python: the tojson filter of transformers (jinja_json.cc).
Value filter_tojson(Evaluator& evaluator, const Value& subject, Arguments& arguments);

// String functions that filters and methods share (jinja_string_methods.cc).
/// Lines without their ends, which are all that Python's splitlines() knows.
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
/// text.replace(from, to, count); all of them for a negative count.
std::string replace_text(std::string_view text, std::string_view from, std::string_view to,
                         Int count, Budget& budget);
enum class Align { kLeft, kRight, kCenter, kMiddle };  // center(), and '^' of format()
/// Filled up to `width` code points.
std::string pad_text(std::string_view text, Int width, std::string_view fill, Align align,
                     Budget& budget);

}  // namespace galley::text::jinja
