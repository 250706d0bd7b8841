#include "engine/core/strings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace galley {

std::string join(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += between;
    out += parts[i];
  }
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    if (end == std::string_view::npos) {
      parts.emplace_back(text.substr(begin));
      return parts;
    }
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::string format(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list copy;
  va_copy(copy, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string out(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  if (size > 0) std::vsnprintf(out.data(), out.size() + 1, format, copy);
  va_end(copy);
  return out;
}

namespace {

// Edit distance where swapping two neighbours counts once (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(to_lower(word), to_lower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(word, candidates);
  return nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?";
}

std::string format_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (std::fabs(bytes) >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return format("%.0f B", bytes);
  return format(std::fabs(bytes) >= 100 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (seconds < 0.9995) return format("%.0f ms", seconds * 1000);
  if (seconds < 59.95) return format("%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) {
    return format("%d min %02d s", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  }
  const int64_t minutes = (whole + 30) / 60;
  return format("%lld h %02lld min", static_cast<long long>(minutes / 60),
                static_cast<long long>(minutes % 60));
}

std::string format_count(double value) {
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};
  int unit = 0;
  while (std::fabs(value) >= 1000 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  const bool whole = unit == 0 ? value == std::floor(value) : std::fabs(value) >= 100;
  return format(whole ? "%.0f%s" : "%.1f%s", value, kUnits[unit]);
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size() ||
      !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> parse_int(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

namespace {

// Slurm's [D-]HH:MM:SS, MM:SS, D-HH, D-HH:MM.
std::optional<double> parse_clock(std::string_view text) {
  double days = 0;
  bool has_days = false;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto value = parse_int(text.substr(0, dash));
    if (!value || *value < 0) return std::nullopt;
    days = static_cast<double>(*value);
    has_days = true;
    text = text.substr(dash + 1);
  }
  std::vector<double> fields;
  for (const std::string& part : split(text, ':')) {
    const auto value = parse_int(part);
    if (!value || *value < 0) return std::nullopt;
    fields.push_back(static_cast<double>(*value));
  }
  if (fields.size() > 3 || (fields.size() < 2 && !has_days)) return std::nullopt;
  // With days the first field is hours; without, two fields are minutes and seconds.
  if (has_days) {
    while (fields.size() < 3) fields.push_back(0);
  } else if (fields.size() == 2) {
    fields.insert(fields.begin(), 0);
  }
  return days * 86400 + fields[0] * 3600 + fields[1] * 60 + fields[2];
}

}  // namespace

std::optional<double> parse_duration(std::string_view text) {
  text = trim(text);
  std::optional<double> seconds;
  if (text.find(':') != std::string_view::npos || text.find('-', 1) != std::string_view::npos) {
    seconds = parse_clock(text);
  } else {
    const size_t unit_begin = text.find_first_not_of("0123456789.");
    const auto number = parse_number(text.substr(0, unit_begin));
    const std::string_view unit =
        unit_begin == std::string_view::npos ? "s" : trim(text.substr(unit_begin));
    if (!number) return std::nullopt;
    if (unit == "s" || unit == "sec") seconds = *number;
    if (unit == "ms") seconds = *number / 1000;
    if (unit == "min" || unit == "m") seconds = *number * 60;
    if (unit == "h") seconds = *number * 3600;
    if (unit == "d") seconds = *number * 86400;
  }
  if (!seconds || *seconds <= 0) return std::nullopt;
  return seconds;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  text = trim(text);
  const size_t unit_begin = text.find_first_not_of("0123456789.");
  const auto number = parse_number(text.substr(0, unit_begin));
  if (!number || *number < 0) return std::nullopt;
  const std::string_view unit =
      unit_begin == std::string_view::npos ? "B" : trim(text.substr(unit_begin));
  struct Unit {
    std::string_view name;
    double factor;
  };
  constexpr Unit kUnits[] = {
      {"B", 1},    {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}, {"TiB", 1099511627776.},
      {"KB", 1e3}, {"MB", 1e6},    {"GB", 1e9},       {"TB", 1e12}};
  for (const Unit& candidate : kUnits) {
    if (candidate.name == unit) return static_cast<uint64_t>(*number * candidate.factor);
  }
  return std::nullopt;
}

bool is_valid_utf8(std::string_view text, size_t* bad_offset) {
  size_t i = 0;
  const auto fail = [&] {
    if (bad_offset != nullptr) *bad_offset = i;
    return false;
  };
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    size_t length = 0;
    unsigned char low = 0x80, high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
      length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      length = 3;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      length = 4;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    } else {
      return fail();
    }
    if (i + length > text.size()) return fail();
    for (size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if (byte < low || byte > high) return fail();
      low = 0x80;
      high = 0xBF;
    }
    i += length;
  }
  return true;
}

void append_utf8(std::string* out, char32_t c) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

char32_t next_utf8(std::string_view text, size_t* offset) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t i = *offset;
  const unsigned char lead = byte(i);
  size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  length = std::min(length, text.size() - i);
  char32_t c = lead;
  if (length == 2) c = lead & 0x1F;
  if (length == 3) c = lead & 0x0F;
  if (length == 4) c = lead & 0x07;
  for (size_t k = 1; k < length; ++k) c = (c << 6) | (byte(i + k) & 0x3F);
  *offset = i + length;
  return c;
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > 100 || name[0] == '.' || name[0] == '-') return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (std::isalnum(c) != 0 && c < 0x80) || c == '.' || c == '_' || c == '-';
  });
}

std::string format_time_utc(double unix_seconds) {
  const auto whole = static_cast<time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&whole, &parts);
  char buffer[32];
  std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return buffer;
}

}  // namespace galley
