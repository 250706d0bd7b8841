// What people read of a group: its GPUs, its shape, its stages and shares. Pure functions of
// values.
#pragma once

#include <string>
#include <vector>

#include "placement/planner.h"

namespace galley::placement {

/// "n1:gpu0-1, n2:gpu0"
std::string gpus_text(const Cluster& cluster, const std::vector<GpuIndex>& gpus);
/// "2 x a100-40gb + 1 x t4-16gb"; of a GPU alone its name.
std::string types_text(const Cluster& cluster, const std::vector<GpuIndex>& gpus);
/// "tp 2", "pp 2 (layers 20 + 10), recompute"
std::string shape_text(const predictor::PlanShape& shape);
/// "n1:gpu0-1  a100-40gb (tp 2)"; a GPU alone has no shape.
std::string runs_on_text(const Cluster& cluster, const Assignment& assignment);
/// "rows 67 % + 33 %"; "" when all replicas are alike.
std::string shares_text(const predictor::PlanShape& shape);
/// "31.4 +- 0.9 GiB", of the fullest GPU: "31.4 +- 0.9 GiB (fullest of 2)".
std::string need_text(const predictor::Prediction& prediction);
/// All of it in one line, for a group: "pp 2 (layers 20 + 10), idle 8 %, communication 2 %"; "" for
/// a GPU alone.
std::string group_text(const Assignment& assignment);

}  // namespace galley::placement
