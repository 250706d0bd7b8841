#include "engine/model/config_keys.h"

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::model {

void ConfigKeys::bad(std::string_view key, const std::string& what) const {
  throw Error(Reason::kBadModel, cat(where_, ": \"", key, "\" ", what));
}

void ConfigKeys::unsupported(const std::string& what) const {
  throw Error(Reason::kUnsupported, cat(where_, ": ", what));
}

const Json* ConfigKeys::find(std::string_view key) const {
  const Json* value = object_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool ConfigKeys::is_null(std::string_view key) const {
  const Json* value = object_.find(key);
  return value != nullptr && value->is_null();
}

int64_t ConfigKeys::size(std::string_view key, int64_t most) const {
  if (find(key) == nullptr) bad(key, "is missing");
  return size(key, most, 0);
}

int64_t ConfigKeys::size(std::string_view key, int64_t most, int64_t fallback) const {
  return integer(key, 1, most, fallback);
}

int64_t ConfigKeys::integer(std::string_view key, int64_t least, int64_t most,
                            int64_t fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_int()) bad(key, cat("is ", value->kind_name(), ", an integer is needed"));
  if (value->as_int() < least || value->as_int() > most) {
    bad(key, cat("is ", value->as_int(), ", it must be between ", least, " and ", most));
  }
  return value->as_int();
}

double ConfigKeys::number(std::string_view key, double fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) bad(key, cat("is ", value->kind_name(), ", a number is needed"));
  return value->as_double();
}

double ConfigKeys::positive(std::string_view key, double fallback) const {
  const double value = number(key, fallback);
  if (!(value > 0) || !std::isfinite(value)) bad(key, cat("is ", value, ", it must be above 0"));
  return value;
}

bool ConfigKeys::flag(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) bad(key, cat("is ", value->kind_name(), ", true or false is needed"));
  return value->as_bool();
}

std::string ConfigKeys::text(std::string_view key, std::string_view fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) bad(key, cat("is ", value->kind_name(), ", a string is needed"));
  return value->as_string();
}

std::vector<int64_t> ConfigKeys::ids(std::string_view key) const {
  std::vector<int64_t> ids;
  const Json* value = find(key);
  if (value == nullptr) return ids;
  const Json::Array one = value->is_array() ? value->as_array() : Json::Array{*value};
  for (const Json& id : one) {
    if (!id.is_int() || id.as_int() < 0) bad(key, "must be a token id or a list of token ids");
    ids.push_back(id.as_int());
  }
  return ids;
}

}  // namespace galley::model
