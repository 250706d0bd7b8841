#include "engine/core/toml.h"

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

constexpr int kMaxDepth = 32;
constexpr uint64_t kMaxConfigBytes = 16 << 20;

ConfigValue convert(const toml::node& node, const std::string& where, int depth) {
  if (depth > kMaxDepth) {
    throw Error(Reason::kBadConfig, cat(where, ": nested deeper than ", kMaxDepth, " levels"));
  }
  ConfigValue out;
  out.line = static_cast<int>(node.source().begin.line);
  out.column = static_cast<int>(node.source().begin.column);
  if (const auto* text = node.as_string()) {
    out.kind = ConfigValue::Kind::kString;
    out.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    out.kind = ConfigValue::Kind::kInt;
    out.integer = integer->get();
    out.number = static_cast<double>(out.integer);
  } else if (const auto* number = node.as_floating_point()) {
    out.kind = ConfigValue::Kind::kDouble;
    out.number = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    out.kind = ConfigValue::Kind::kBool;
    out.boolean = boolean->get();
  } else if (const auto* array = node.as_array()) {
    out.kind = ConfigValue::Kind::kArray;
    for (const toml::node& item : *array) out.items.push_back(convert(item, where, depth + 1));
  } else if (const auto* table = node.as_table()) {
    out.kind = ConfigValue::Kind::kTable;
    for (const auto& [key, value] : *table) {
      ConfigValue member = convert(value, where, depth + 1);
      // The key's own place names the line of `key = value` and of `[section]` alike.
      if (key.source().begin.line > 0) {
        member.line = static_cast<int>(key.source().begin.line);
        member.column = static_cast<int>(key.source().begin.column);
      }
      out.members.emplace_back(std::string(key.str()), std::move(member));
    }
    std::stable_sort(out.members.begin(), out.members.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second.line, a.second.column) < std::pair(b.second.line, b.second.column);
    });
  } else {
    out.kind = ConfigValue::Kind::kTime;
    std::ostringstream printed;
    node.visit([&](const auto& value) { printed << value; });
    out.text = printed.str();
  }
  return out;
}

ConfigValue convert(const Json& json) {
  ConfigValue out;
  switch (json.kind()) {
    case Json::Kind::kNull:
      throw Error(Reason::kBadConfig, "null is no value of a configuration; leave the key out");
    case Json::Kind::kBool:
      out.kind = ConfigValue::Kind::kBool;
      out.boolean = json.as_bool();
      break;
    case Json::Kind::kInt:
      out.kind = ConfigValue::Kind::kInt;
      out.integer = json.as_int();
      out.number = static_cast<double>(out.integer);
      break;
    case Json::Kind::kDouble:
      out.kind = ConfigValue::Kind::kDouble;
      out.number = json.as_double();
      break;
    case Json::Kind::kString:
      out.kind = ConfigValue::Kind::kString;
      out.text = json.as_string();
      break;
    case Json::Kind::kArray:
      out.kind = ConfigValue::Kind::kArray;
      for (const Json& item : json.as_array()) out.items.push_back(convert(item));
      break;
    case Json::Kind::kObject:
      out.kind = ConfigValue::Kind::kTable;
      for (const auto& [key, value] : json.as_object())
        out.members.emplace_back(key, convert(value));
      break;
  }
  return out;
}

}  // namespace

const ConfigValue* ConfigValue::find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string_view ConfigValue::kind_name() const {
  constexpr std::string_view kNames[] = {"a string", "an integer", "a number",      "a boolean",
                                         "a list",   "a table",    "a date or time"};
  return kNames[static_cast<int>(kind)];
}

std::string ConfigValue::to_toml() const {
  switch (kind) {
    case Kind::kString:
      return json_quote(text);
    case Kind::kTime:
      return text;
    case Kind::kInt:
      return std::to_string(integer);
    case Kind::kDouble:
      return format_double_repr(number);
    case Kind::kBool:
      return boolean ? "true" : "false";
    case Kind::kArray: {
      std::vector<std::string> parts;
      for (const ConfigValue& item : items) parts.push_back(item.to_toml());
      return "[" + join(parts, ", ") + "]";
    }
    case Kind::kTable: {
      std::vector<std::string> parts;
      for (const auto& [key, value] : members)
        parts.push_back(json_quote(key) + " = " + value.to_toml());
      return "{ " + join(parts, ", ") + " }";
    }
  }
  return "";
}

std::string format_faults(const std::string& file, const std::vector<ConfigFault>& faults) {
  std::vector<std::string> lines;
  for (const ConfigFault& fault : faults) {
    lines.push_back(fault.line > 0 ? cat(file, ":", fault.line, ": ", fault.message)
                                   : cat(file, ": ", fault.message));
  }
  return join(lines, "\n");
}

ConfigValue parse_toml(std::string_view text, const std::string& where) {
  try {
    const toml::table table = toml::parse(text, where);
    return convert(table, where, 0);
  } catch (const toml::parse_error& error) {
    throw Error(Reason::kBadConfig, cat(where, ":", error.source().begin.line, ":",
                                        error.source().begin.column, ": ", error.description()));
  }
}

ConfigValue read_config_file(const std::string& path) {
  const std::string text = read_file(path, kMaxConfigBytes);
  const std::string_view body = trim(text);
  if (!body.empty() && body[0] == '{') {
    try {
      return convert(parse_json_or_throw(text, path, Reason::kBadConfig, {kMaxDepth}));
    } catch (const Error& error) {
      if (std::string(error.what()).rfind(path, 0) == 0) throw;
      throw Error(error.reason(), cat(path, ": ", error.what()));
    }
  }
  return parse_toml(text, path);
}

void check_known_keys(const ConfigValue& table, const std::string& section,
                      const std::vector<std::string>& known, std::vector<ConfigFault>* faults) {
  for (const auto& [key, value] : table.members) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    faults->push_back({Reason::kBadConfig, value.line,
                       cat("unknown key \"", key, "\" in ", section, did_you_mean(key, known))});
  }
}

}  // namespace galley
