#include "engine/text/dataset_line.h"

#include <simdjson.h>

#include <cstring>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::text {
namespace {

// True when the keys of one object differ; most objects have a handful.
bool keys_differ(const Json::Object& members) {
  if (members.size() <= 16) {
    for (size_t i = 1; i < members.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (members[i].first == members[k].first) return false;
      }
    }
    return true;
  }
  std::unordered_set<std::string_view> seen;
  for (const Json::Member& member : members) {
    if (!seen.insert(member.first).second) return false;
  }
  return true;
}

// Copies a parsed element; false where this project's own bounds refuse it.
bool convert(simdjson::dom::element element, int depth, Json* out) {
  using Type = simdjson::dom::element_type;
  switch (element.type()) {
    case Type::ARRAY: {
      if (depth >= kMaxRowDepth) return false;
      Json::Array items;
      for (const auto item : simdjson::dom::array(element)) {
        items.emplace_back();
        if (!convert(item, depth + 1, &items.back())) return false;
      }
      *out = Json(std::move(items));
      return true;
    }
    case Type::OBJECT: {
      if (depth >= kMaxRowDepth) return false;
      Json::Object members;
      for (const auto field : simdjson::dom::object(element)) {
        members.emplace_back(std::string(field.key), Json());
        if (!convert(field.value, depth + 1, &members.back().second)) return false;
      }
      if (!keys_differ(members)) return false;
      *out = Json(std::move(members));
      return true;
    }
    case Type::STRING:
      *out = Json(std::string_view(element));
      return true;
    case Type::INT64:
      *out = Json(int64_t(element));
      return true;
    case Type::UINT64:
      *out = Json(uint64_t(element));
      return true;
    case Type::DOUBLE:
      *out = Json(double(element));
      return true;
    case Type::BOOL:
      *out = Json(bool(element));
      return true;
    case Type::NULL_VALUE:
      *out = Json();
      return true;
  }
  return false;
}

// The library accepts some lone surrogates; texts that escape any go the slow way.
bool escapes_surrogates(std::string_view text) {
  for (size_t at = text.find("\\u"); at != std::string_view::npos; at = text.find("\\u", at + 2)) {
    if (at + 2 < text.size() && (text[at + 2] == 'd' || text[at + 2] == 'D')) return true;
  }
  return false;
}

}  // namespace

struct LineParser::State {
  simdjson::dom::parser parser;
  std::string padded;
};

LineParser::LineParser() : state_(std::make_unique<State>()) {}
LineParser::~LineParser() = default;

std::optional<LineFault> LineParser::parse(std::string_view text, Json* value) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return LineFault{FaultKind::kNulByte, nul, "a NUL byte; is this a text file?"};
  }
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    size_t bad = 0;
    is_valid_utf8(text, &bad);
    return LineFault{FaultKind::kInvalidUtf8, bad,
                     "not UTF-8; convert the file (iconv -f latin1 -t utf8)"};
  }
  std::string& padded = state_->padded;
  padded.assign(text);
  padded.append(simdjson::SIMDJSON_PADDING, '\0');
  simdjson::dom::element root;
  const bool parsed =
      state_->parser.parse(padded.data(), text.size(), false).get(root) == simdjson::SUCCESS;
  const bool converted = parsed && convert(root, 0, value);
  if (converted && !escapes_surrogates(text)) return std::nullopt;
  if (auto fault = scan_json(text)) return fault;
  if (converted) return std::nullopt;
  // Valid JSON that the fast parser refuses: numbers beyond its range.
  JsonFault fault;
  if (parse_json(text, value, &fault, {kMaxRowDepth})) return std::nullopt;
  return LineFault{FaultKind::kWrongValue, fault.offset, "a number beyond the range of a double"};
}

}  // namespace galley::text
