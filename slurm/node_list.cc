#include "slurm/node_list.h"

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::slurm {
namespace {

constexpr size_t kMaxNames = 65536;

[[noreturn]] void bad(std::string_view list, const std::string& why) {
  throw Error(Reason::kBadConfig, cat("\"", list, "\" is no node list: ", why,
                                      "; write it like \"n[1-2,4]\" or \"node07,node09\""));
}

[[noreturn]] void bad_counts(std::string_view counts) {
  throw Error(Reason::kBadConfig,
              cat("\"", counts, "\" is no list of counts; they look like 2(x2),1"));
}

/// Commas outside brackets separate the parts.
std::vector<std::string> parts_of(std::string_view list) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : list) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) bad(list, "brackets do not match");
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  if (depth != 0) bad(list, "brackets do not match");
  return parts;
}

/// "1-3,07" -> 1 2 3 07; the width of the first number is kept.
std::vector<std::string> expand_range(std::string_view list, std::string_view body) {
  std::vector<std::string> out;
  for (const std::string& item : split(body, ',')) {
    const size_t dash = item.find('-');
    const std::string low_text = item.substr(0, dash);
    const std::string high_text = dash == std::string::npos ? low_text : item.substr(dash + 1);
    const auto low = parse_int(low_text), high = parse_int(high_text);
    if (!low || !high || *low < 0 || *high < *low)
      bad(list, cat("\"", item, "\" is no range of numbers"));
    if (static_cast<size_t>(*high - *low) >= kMaxNames) bad(list, "it has too many names");
    for (int64_t i = *low; i <= *high; ++i) {
      out.push_back(format("%0*lld", static_cast<int>(low_text.size()), static_cast<long long>(i)));
    }
  }
  return out;
}

void expand_part(std::string_view list, std::string_view part, std::vector<std::string>* out) {
  std::vector<std::string> names(1);
  while (!part.empty()) {
    const size_t open = part.find('[');
    for (std::string& name : names) name += part.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = part.find(']', open);
    const std::vector<std::string> range =
        expand_range(list, part.substr(open + 1, close - open - 1));
    if (names.size() * range.size() > kMaxNames) bad(list, "it has too many names");
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : range) longer.push_back(name + number);
    }
    names = std::move(longer);
    part = part.substr(close + 1);
  }
  for (const std::string& name : names) {
    if (!is_plain_name(name)) bad(list, cat("\"", name, "\" is no host name"));
    out->push_back(name);
  }
  if (out->size() > kMaxNames) bad(list, "it has too many names");
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list) {
  std::vector<std::string> names;
  for (const std::string& part : parts_of(trim(list))) expand_part(list, trim(part), &names);
  return names;
}

std::vector<int> expand_counts(std::string_view counts) {
  std::vector<int> out;
  for (const std::string& item : split(counts, ',')) {
    const size_t times_at = item.find("(x");
    const auto count = parse_int(item.substr(0, times_at));
    int64_t times = 1;
    if (times_at != std::string::npos) {
      const auto parsed = parse_int(item.substr(times_at + 2, item.size() - times_at - 3));
      if (!parsed || item.back() != ')') bad_counts(counts);
      times = *parsed;
    }
    if (!count || *count < 0 || times < 1 || times > static_cast<int64_t>(kMaxNames)) {
      bad_counts(counts);
    }
    out.insert(out.end(), static_cast<size_t>(times), static_cast<int>(*count));
  }
  return out;
}

}  // namespace galley::slurm
