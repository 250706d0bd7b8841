#include "placement/describe.h"

#include <algorithm>

#include "engine/core/strings.h"

namespace galley::placement {
namespace {

constexpr double kGiB = 1073741824.0, kMiB = 1048576.0;

std::string percent(double share) { return format("%.0f %%", share * 100); }

}  // namespace

std::string gpus_text(const Cluster& cluster, const std::vector<GpuIndex>& gpus) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < gpus.size();) {
    const Gpu& first = cluster.gpus.at(static_cast<size_t>(gpus[i]));
    size_t end = i + 1;
    while (end < gpus.size()) {
      const Gpu& next = cluster.gpus.at(static_cast<size_t>(gpus[end]));
      if (next.node != first.node ||
          next.local_index != first.local_index + static_cast<int>(end - i))
        break;
      ++end;
    }
    std::string run = cluster.gpu_name(gpus[i]);
    if (end > i + 1) run += cat("-", first.local_index + static_cast<int>(end - i) - 1);
    runs.push_back(run);
    i = end;
  }
  return join(runs, ", ");
}

std::string types_text(const Cluster& cluster, const std::vector<GpuIndex>& gpus) {
  std::vector<std::pair<std::string, int>> types;
  for (const GpuIndex gpu : gpus) {
    const std::string& name = cluster.gpus.at(static_cast<size_t>(gpu)).type.name;
    const auto found = std::find_if(types.begin(), types.end(),
                                    [&](const auto& type) { return type.first == name; });
    if (found == types.end()) {
      types.emplace_back(name, 1);
    } else {
      ++found->second;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [name, count] : types) {
    parts.push_back(count == 1 && gpus.size() == 1 ? name : cat(count, " x ", name));
  }
  return join(parts, " + ");
}

std::string shape_text(const predictor::PlanShape& shape) {
  return cat(model::to_text(shape.layout), shape.recompute_blocks ? ", recompute" : "");
}

std::string runs_on_text(const Cluster& cluster, const Assignment& assignment) {
  std::string types = types_text(cluster, assignment.gpus);
  if (types.find(" + ") == std::string::npos) {
    types = cluster.gpus.at(static_cast<size_t>(assignment.gpus.front())).type.name;
  }
  const std::string gpus = cat(gpus_text(cluster, assignment.gpus), "  ", types);
  if (assignment.gpus.size() == 1) return gpus;
  return cat(gpus, " (", model::to_text(assignment.candidate.shape.layout), ")");
}

std::string shares_text(const predictor::PlanShape& shape) {
  std::vector<std::string> shares;
  for (const double share : shape.replica_shares) shares.push_back(percent(share));
  return shares.empty() ? "" : "rows " + join(shares, " + ");
}

std::string need_text(const predictor::Prediction& prediction) {
  const double half = static_cast<double>(prediction.high_bytes - prediction.predicted_bytes);
  const double middle = static_cast<double>(prediction.predicted_bytes);
  const std::string need = middle >= kGiB ? format("%.1f +- %.1f GiB", middle / kGiB, half / kGiB)
                                          : format("%.0f +- %.0f MiB", middle / kMiB, half / kMiB);
  const size_t workers = prediction.workers.size();
  return workers > 1 ? cat(need, " (fullest of ", workers, ")") : need;
}

std::string group_text(const Assignment& assignment) {
  const predictor::PlanShape& shape = assignment.candidate.shape;
  const predictor::Prediction& prediction = assignment.candidate.prediction;
  if (shape.layout.num_workers() == 1) return "";
  std::vector<std::string> parts = {model::to_text(shape.layout)};
  if (const std::string shares = shares_text(shape); !shares.empty()) {
    parts.push_back(shares);
  } else if (shape.layout.dp_size > 1) {
    parts.push_back("equal shares");
  }
  if (shape.recompute_blocks) parts.emplace_back("recompute");
  parts.push_back(cat("idle ", percent(prediction.idle_share)));
  parts.push_back(cat("communication ", percent(prediction.communication_share)));
  return join(parts, ", ");
}

}  // namespace galley::placement
