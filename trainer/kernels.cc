#include "trainer/kernels.h"

#include <algorithm>
#include <optional>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"

namespace galley::trainer {
namespace {

using device::InputRounding;
using device::KernelSet;

constexpr int64_t kFormat = 1;
constexpr uint64_t kMostBytes = 64 << 10;

InputRounding rounding(const KernelRequest& request) {
  return request.may_round_inputs ? InputRounding::kAllowed : InputRounding::kNever;
}

std::string names_of(const std::vector<KernelSet>& sets) {
  std::vector<std::string> names;
  for (const KernelSet kernels : sets) names.push_back(device::kernel_set_name(kernels));
  return join(names, ", ");
}

KernelSet pinned(const KernelRequest& request) {
  const KernelSet kernels = [&] {
    try {
      return device::kernel_set_from_name(request.pin);
    } catch (const Error& error) {
      throw Error(Reason::kBadConfig, cat("plan.kernels: ", error.what()));
    }
  }();
  if (!device::kernel_set_usable(kernels)) {
    throw Error(Reason::kBadConfig,
                cat("plan.kernels = \"", request.pin, "\": this processor (",
                    device::processor_name(), ") cannot run them; it has ",
                    names_of(device::usable_kernel_sets()), ". Name one of these, or \"auto\""));
  }
  if (device::kernel_set_rounds(kernels) && !request.may_round_inputs) {
    throw Error(Reason::kBadConfig,
                cat("plan.kernels = \"", request.pin,
                    "\" rounds inputs to bf16, which this job's precision forbids; set precision = "
                    "\"bf16\" (on a GPU type that has it), or name one of ",
                    names_of(device::kernel_candidates(InputRounding::kNever))));
  }
  return kernels;
}

/// Kernels of a record, when they can and may run here.
std::optional<KernelSet> allowed(const std::string& name, const KernelRequest& request) {
  for (const KernelSet kernels : device::kernel_candidates(rounding(request))) {
    if (device::kernel_set_name(kernels) == name) return kernels;
  }
  return std::nullopt;
}

/// What must be the same for a kept measurement to hold.
Json conditions(const KernelRequest& request) {
  Json json = Json::object();
  json.set("format", kFormat)
      .set("processor", device::processor_name())
      .set("threads", request.work.threads)
      .set("weights", request.work.weights == device::WeightKind::kBf16 ? "BF16" : "F32")
      .set("may_round_inputs", request.may_round_inputs);
  return json;
}

std::string kept_path(const std::string& job_directory) {
  return path_join(job_directory, "kernels.json");
}

/// The kept record, or null: then, and whenever it does not fit, it is made anew.
Json read_kept(const std::string& job_directory) {
  const std::string path = kept_path(job_directory);
  if (!path_exists(path)) return {};
  try {
    return parse_json_or_throw(read_file(path, kMostBytes), path, Reason::kIo);
  } catch (const Error&) {
    return {};
  }
}

std::string kept_kernels(const Json& kept) {
  if (!kept.is_object()) return "";
  const Json* name = kept.find("kernels");
  return name != nullptr && name->is_string() ? name->as_string() : "";
}

bool same_conditions(const Json& kept, const Json& now) {
  for (const auto& [key, value] : now.as_object()) {
    const Json* other = kept.find(key);
    if (other == nullptr || !(*other == value)) return false;
  }
  return true;
}

Json measured_json(const std::vector<device::KernelMeasurement>& measured) {
  Json list = Json::array();
  for (const device::KernelMeasurement& one : measured) {
    list.push(Json::object()
                  .set("kernels", device::kernel_set_name(one.kernels))
                  .set("gflops", one.flops_per_second / 1e9));
  }
  return list;
}

std::string text_of(KernelSet kernels, const std::string& why) {
  return cat("kernels ", device::kernel_set_name(kernels), why.empty() ? "" : " (", why,
             why.empty() ? "" : ")");
}

KernelDecision measure(const std::string& job_directory, const KernelRequest& request,
                       std::optional<KernelSet> earlier) {
  const std::vector<KernelSet> candidates = device::kernel_candidates(rounding(request));
  const auto measured = device::measure_kernels(candidates, request.work);
  KernelDecision decision;
  decision.kernels = device::choose_kernels(measured, earlier);
  decision.text = text_of(decision.kernels, device::compare_kernels(decision.kernels, measured));
  decision.measured = measured_json(measured);
  Json kept = conditions(request);
  kept.set("kernels", device::kernel_set_name(decision.kernels)).set("measured", decision.measured);
  try {
    write_file_atomically(kept_path(job_directory), kept.dump_pretty());
  } catch (const Error& error) {
    // The choice itself is made: a worker that starts again would only have to measure once more.
    decision.text += cat(", not kept: ", error.what());
  }
  return decision;
}

}  // namespace

device::KernelWork block_work(const model::ModelConfig& config, DType weight_dtype, int threads,
                              const std::vector<int>& cpus) {
  device::KernelWork work;
  work.shapes = {{config.q_width(), config.hidden},
                 {config.intermediate, config.hidden},
                 {config.hidden, config.intermediate}};
  work.weights = device::weight_kind(weight_dtype);
  work.threads = threads;
  work.cpus = cpus;
  return work;
}

device::KernelWork training_work(const model::ModelConfig& config, DType weight_dtype,
                                 int64_t micro_batch_tokens, int threads,
                                 const std::vector<int>& cpus) {
  device::KernelWork work = block_work(config, weight_dtype, threads, cpus);
  work.rows = {{std::max<int64_t>(1, micro_batch_tokens / threads), 1}};
  work.passes = device::KernelWork::Passes::kForwardAndBackward;
  return work;
}

KernelDecision decide_kernels(const std::string& job_directory, const KernelRequest& request) {
  if (!request.pin.empty()) {
    const KernelSet kernels = pinned(request);
    return {kernels, text_of(kernels, "pinned"), Json::array()};
  }
  std::string given_up;
  if (!request.checkpoint.empty()) {
    if (const auto kernels = allowed(request.checkpoint, request)) {
      return {*kernels, text_of(*kernels, "as in the checkpoint"), request.checkpoint_measured};
    }
    given_up = cat("the checkpoint's kernels ", request.checkpoint, " cannot be used here; ");
  }
  const Json kept = read_kept(job_directory);
  const auto earlier = allowed(kept_kernels(kept), request);
  KernelDecision decision;
  if (earlier && same_conditions(kept, conditions(request))) {
    const Json* measured = kept.find("measured");
    decision = {*earlier, text_of(*earlier, "as measured before"),
                measured == nullptr ? Json::array() : *measured};
  } else {
    decision = measure(job_directory, request, earlier);
  }
  decision.text = given_up + decision.text;
  return decision;
}

KernelDecision agree_on_kernels(const std::string& job_directory, const KernelRequest& request,
                                const WorkerGroup& group) {
  std::vector<std::string> own;
  for (const KernelSet kernels : device::usable_kernel_sets()) {
    own.push_back(device::kernel_set_name(kernels));
  }
  std::set<std::string> common(own.begin(), own.end());
  for (const std::string& names : group.from_all(join(own, " "))) {
    const std::vector<std::string> theirs = split(names, ' ');
    std::erase_if(common, [&](const std::string& name) {
      return std::find(theirs.begin(), theirs.end(), name) == theirs.end();
    });
  }
  KernelDecision decision;
  if (group.leads()) {
    decision = decide_kernels(job_directory, request);
    if (!common.contains(device::kernel_set_name(decision.kernels))) {
      const std::string wanted = device::kernel_set_name(decision.kernels);
      if (!request.pin.empty()) {
        throw Error(Reason::kBadConfig,
                    cat("plan.kernels = \"", request.pin,
                        "\": a processor of this job's group cannot run them; all have ",
                        join({common.begin(), common.end()}, ", ")));
      }
      for (const KernelSet kernels : device::kernel_candidates(rounding(request))) {
        if (common.contains(device::kernel_set_name(kernels))) decision.kernels = kernels;
      }
      decision.text =
          text_of(decision.kernels, cat("a processor of the group cannot run ", wanted));
    }
  }
  const std::string name = group.from_leader(device::kernel_set_name(decision.kernels));
  decision.kernels = device::kernel_set_from_name(name);
  return decision;
}

}  // namespace galley::trainer
