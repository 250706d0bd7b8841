// Checkpoint: the whole state of a job at a step border, in one HDF5 file behind our own checksum.
//
// docs/formats.md describes the bytes. The first 512 bytes (HDF5's user block) hold magic, version,
// length and XXH3-128 of everything behind them: a reader checks these before HDF5 parses anything.
// Tensors have their PEFT names and are whole, whatever the layout was. Plain functions on values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/json.h"
#include "engine/model/layout.h"
#include "engine/model/lora.h"
#include "engine/model/train_spec.h"
#include "trainer/data_order.h"
#include "trainer/schedule.h"

namespace galley::trainer {

/// What a checkpoint says beside its tensors.
struct CheckpointRecord {
  std::string galley_version;
  int64_t step = 0;            // optimizer steps done
  DataPosition next_position;  // of the step after it
  Schedule schedule;
  model::TrainSpec spec;
  std::string spec_hash;
  std::string tokens_hash;  // inputs hash of the token file
  Json tokens_inputs;       // what that hash is of: tokenizer, template, data, options
  std::string model_fingerprint;
  std::vector<model::AdaptedLinear> linears;
  // What decides the bits beside the inputs.
  std::string kernels, processor;
  Json kernels_measured = Json::array();  // figures behind the choice; see trainer/kernels.h
  int threads = 0;
  int64_t micro_batch_tokens = 0;
  model::ParallelLayout layout;  // of the group that wrote it; any other may continue
  std::string weight_dtype;
  // Of the last step done, for people.
  double loss = 0, gradient_norm = 0, learning_rate = 0;
};
Json to_json(const CheckpointRecord& record);
CheckpointRecord checkpoint_record_from_json(const Json& json);

struct CheckpointState {
  CheckpointRecord record;
  std::vector<float> values, first_moments, second_moments;  // flat, as model::trainable_tensors
};

/// JOB/checkpoint-STEP.h5
std::string checkpoint_path(const std::string& job_directory, int64_t step);

/// Writes beside, reads back, renames; then removes all but the newest `keep`. A failure
/// (kDiskFull, kIo, ...) leaves the older checkpoints as they are. kNumerics when a value is not
/// finite.
void write_checkpoint(const std::string& job_directory, const CheckpointState& state, int keep);

/// Error(kMissingPath); Error(kBadCheckpoint) naming what is broken; Error(kUnsupported) for a
/// version of the future.
CheckpointRecord read_checkpoint_record(const std::string& path);
CheckpointState read_checkpoint(const std::string& path);

struct FoundCheckpoint {
  std::string path;
  int64_t step = 0;
};
/// The newest one whose checksum is right. Broken newer ones are named in `notes` and, when
/// `put_aside` is kYes, renamed to broken-NAME, so that they count for nothing any more.
enum class PutAside { kNo, kYes };
std::optional<FoundCheckpoint> newest_checkpoint(const std::string& job_directory,
                                                 std::vector<std::string>* notes,
                                                 PutAside put_aside);

}  // namespace galley::trainer
