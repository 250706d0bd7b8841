// Which kernels of the host device a job's worker runs, and why: pinned by the job file, as in the
// checkpoint that it resumes, as kept in the job's directory, or measured now and kept there.
//
// JOB/kernels.json (docs/formats.md) is written once by the worker's thread and read by a worker
// that starts again; a file that cannot be used is replaced.
#pragma once

#include <string>

#include "engine/core/json.h"
#include "engine/device/host/kernel_choice.h"
#include "engine/model/model_config.h"
#include "trainer/worker_group.h"

namespace galley::trainer {

struct KernelRequest {
  std::string pin;           // of the job file; "": none
  std::string checkpoint;    // of the checkpoint that is resumed; "": none
  Json checkpoint_measured;  // its figures
  bool may_round_inputs = false;
  device::KernelWork work;  // what a measurement times, and on which threads
};

struct KernelDecision {
  device::KernelSet kernels = device::KernelSet::kPortable;
  std::string text;  // for people: "kernels avx512-bf16 (2.1x avx512)"
  Json measured;     // [{kernels, gflops}]; empty when nothing was measured
};

/// The products of a model's blocks, for a measurement: forward alone; the caller says of how many
/// rows.
device::KernelWork block_work(const model::ModelConfig& config, DType weight_dtype, int threads,
                              const std::vector<int>& cpus);
/// The products of a training step.
device::KernelWork training_work(const model::ModelConfig& config, DType weight_dtype,
                                 int64_t micro_batch_tokens, int threads,
                                 const std::vector<int>& cpus);

/// Error(kBadConfig) for a pin that this processor lacks (names what it has) or that the precision
/// forbids. Kernels of a checkpoint that cannot run here, or that may not round here, are given up
/// and the text says so.
KernelDecision decide_kernels(const std::string& job_directory, const KernelRequest& request);

/// For all workers of a group, which call it together: the leader decides among the sets that every
/// processor of the group has, so that all compute with the same one.
KernelDecision agree_on_kernels(const std::string& job_directory, const KernelRequest& request,
                                const WorkerGroup& group);

}  // namespace galley::trainer
