#include "engine/device/bench_record.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "galley_versions.h"

namespace galley::device {

Spread spread_of(std::vector<double> samples) {
  GALLEY_CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  return {median, samples.front(), samples.back()};
}

Json to_json(const BenchRecord& record, const std::string& machine) {
  Json spread = Json::array();
  spread.push(record.value.lowest);
  spread.push(record.value.highest);
  const auto optional = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  Json json = Json::object();
  json.set("name", record.name)
      .set("unit", record.unit)
      .set("value", record.value.median)
      .set("spread", std::move(spread))
      .set("fraction", optional(record.fraction))
      .set("limit", text(record.limit))
      .set("rate", optional(record.rate))
      .set("rate_unit", text(record.rate_unit))
      .set("loss", optional(record.loss))
      .set("gradient_norm", optional(record.gradient_norm))
      .set("kernels", text(record.kernels))
      .set("threads", record.threads)
      .set("machine", machine)
      .set("version", GALLEY_VERSION);
  return json;
}

std::string to_line(const BenchRecord& record) {
  std::string line = format("%-44s %-11s %3d thr %10.4g %-8s (%.4g - %.4g)", record.name.c_str(),
                            record.kernels.c_str(), record.threads, record.value.median,
                            record.unit.c_str(), record.value.lowest, record.value.highest);
  if (record.rate) line += format("  %8.1f %s", *record.rate, record.rate_unit.c_str());
  if (record.fraction) {
    line += format(" = %.1f %% of %s", 100 * *record.fraction, record.limit.c_str());
  }
  return line;
}

}  // namespace galley::device
