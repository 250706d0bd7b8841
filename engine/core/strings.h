// Small string functions shared by all modules: joining, splitting, nearest names, units.
//
// Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// Concatenates everything that a stream can print.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::string join(const std::vector<std::string>& parts, std::string_view between);
std::vector<std::string> split(std::string_view text, char separator);
/// Without ASCII white space at both ends.
std::string_view trim(std::string_view text);
/// `format` with printf rules, for numbers in tables.
std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// With A-Z as a-z; other bytes stay.
std::string to_lower(std::string_view text);

/// The candidate with the smallest edit distance to `word`, when that is at most a third of its
/// length (at least 2); empty otherwise. Letters A-Z count as a-z.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);
/// `; did you mean "x"?` or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// "1.9 GiB", "312 MiB", "17 B"; binary units.
std::string format_bytes(double bytes);
/// "3 h 10 min", "12 min 05 s", "4.2 s", "18 ms".
std::string format_duration(double seconds);
/// "6.1 k", "41 k", "305", "1.2 M".
std::string format_count(double value);

/// "4h", "10min", "30s", "250ms", "2d", or a bare number of seconds, or Slurm's "D-HH:MM:SS",
/// "HH:MM:SS", "MM:SS" -> seconds; nothing if it is none of these or not positive.
std::optional<double> parse_duration(std::string_view text);
/// Whole decimal integer or nothing.
std::optional<int64_t> parse_int(std::string_view text);
/// Finite decimal number or nothing.
std::optional<double> parse_number(std::string_view text);
/// "16GiB", "512MiB", "24GB", or a bare number of bytes; nothing if it is none of these.
std::optional<uint64_t> parse_bytes(std::string_view text);

/// True when `text` is well-formed UTF-8 (no surrogates, no overlong forms); otherwise
/// `bad_offset`, when given, is the offset of the first ill-formed byte.
bool is_valid_utf8(std::string_view text, size_t* bad_offset = nullptr);
/// Appends a code point as UTF-8.
void append_utf8(std::string* out, char32_t code_point);
/// Reads one code point at `*offset` of well-formed UTF-8 and advances the offset.
char32_t next_utf8(std::string_view text, size_t* offset);

/// `name` is safe as a file or directory name: letters, digits, '.', '_', '-', not starting with
/// '.' or '-', 1 to 100 characters.
bool is_plain_name(std::string_view name);

/// UTC "2026-11-30T16:49:53Z" of a Unix time in seconds.
std::string format_time_utc(double unix_seconds);

}  // namespace galley
