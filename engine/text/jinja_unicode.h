// Code points: Python counts, slices and changes strings by code points, galley keeps them as
// UTF-8. All functions take well-formed UTF-8.
//
// Pure functions; safe from any thread. Categories and simple case mappings are utf8proc's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace galley::text::jinja {

bool is_ascii(std::string_view text);
size_t count_code_points(std::string_view text);
std::u32string decode_utf8(std::string_view text);
std::string encode_utf8(std::u32string_view text);
/// Byte offset of the code point `index`; text.size() when there are fewer.
size_t byte_offset(std::string_view text, size_t index);

// Python's str methods of these names.
bool is_space(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_title(char32_t c);
/// False for what repr() escapes.
bool is_printable(char32_t c);
/// A letter, a number or '_': the \w of regular expressions.
bool is_word(char32_t c);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);

enum class Side { kBoth, kLeft, kRight };
/// Without white space, or without the code points in `characters`, at its ends.
std::string_view strip_space(std::string_view text, Side side = Side::kBoth);
std::string_view strip_characters(std::string_view text, std::string_view characters, Side side);

}  // namespace galley::text::jinja
