// A whole small job for tests: model folder, token file, assignment, and events that can stop it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/file.h"
#include "engine/core/hash.h"
#include "engine/core/random.h"
#include "engine/text/token_file.h"
#include "engine/text/token_file_format.h"
#include "tests/engine/model/toy_folder.h"
#include "tests/support/reference.h"
#include "trainer/run_job.h"

namespace galley::trainer::testing {

struct ToyRow {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
};

/// Rows of very different lengths; token ids below `vocabulary`.
inline std::vector<ToyRow> toy_rows(size_t count, uint32_t vocabulary, uint64_t seed) {
  std::vector<ToyRow> rows;
  Random random(seed, 5);
  for (size_t i = 0; i < count; ++i) {
    ToyRow row;
    const size_t length = 3 + random.below(i % 3 == 0 ? 22 : 8);
    for (size_t t = 0; t < length; ++t) {
      row.ids.push_back(static_cast<int32_t>(random.below(vocabulary)));
      row.mask.push_back(t > 0 && (t + 1 == length || random.below(3) > 0) ? 1 : 0);
    }
    rows.push_back(row);
  }
  return rows;
}

/// Writes the bytes that docs/formats.md describes. `inputs` is what the inputs hash is of.
inline void write_token_file(const std::string& path, const std::vector<std::vector<ToyRow>>& sets,
                             const Json& inputs) {
  namespace tf = text::token_format;
  text::TokenSummary summary;
  std::string bytes(sizeof(tf::Header), '\0');
  std::memcpy(bytes.data(), tf::kMagic, 8);
  std::memcpy(bytes.data() + 8, &tf::kVersion, 4);
  std::vector<tf::TableEntry> table;
  for (size_t k = 0; k < sets.size(); ++k) {
    summary.inputs.push_back({"set", sets[k].size()});
    for (const ToyRow& row : sets[k]) {
      tf::TableEntry entry{};
      entry.offset = bytes.size();
      entry.line = table.size() + 1;
      entry.length = static_cast<uint32_t>(row.ids.size());
      entry.input = static_cast<uint32_t>(k);
      bytes.append(reinterpret_cast<const char*>(row.ids.data()), 4 * row.ids.size());
      bytes.append(reinterpret_cast<const char*>(row.mask.data()), row.mask.size());
      bytes.resize((bytes.size() + 7) / 8 * 8, '\0');
      for (const uint8_t target : row.mask) entry.num_targets += target;
      for (const int32_t id : row.ids)
        summary.highest_id = std::max<int64_t>(summary.highest_id, id);
      summary.num_rows += 1;
      summary.num_tokens += row.ids.size();
      summary.num_targets += entry.num_targets;
      summary.longest = std::max<uint64_t>(summary.longest, row.ids.size());
      table.push_back(entry);
    }
  }
  tf::Footer footer{};
  footer.num_rows = summary.num_rows;
  footer.num_tokens = summary.num_tokens;
  footer.num_targets = summary.num_targets;
  footer.table_offset = bytes.size();
  bytes.append(reinterpret_cast<const char*>(table.data()), table.size() * sizeof(tf::TableEntry));
  const std::string info = Json::object()
                               .set("inputs_hash", hash128_hex(inputs.dump()))
                               .set("inputs", inputs)
                               .set("summary", summary.to_json())
                               .dump();
  footer.info_offset = bytes.size();
  footer.info_bytes = info.size();
  bytes += info;
  footer.file_bytes = bytes.size() + sizeof footer;
  std::memcpy(footer.content_hash, hash128_hex(bytes).data(), 32);
  footer.footer_hash = hash64(&footer, offsetof(tf::Footer, footer_hash));
  std::memcpy(footer.magic, tf::kMagic, 8);
  bytes.append(reinterpret_cast<const char*>(&footer), sizeof footer);
  write_file_atomically(path, bytes);
}

inline Json toy_inputs() {
  return Json::object().set("data", "d0").set("tokenizer", "t0").set("chat_template", "c0");
}

struct ToyJob {
  std::string root;
  TrainAssignment assignment;
  Json inputs = toy_inputs();
  std::vector<std::vector<ToyRow>> sets;

  void write_tokens() const { write_token_file(assignment.token_file, sets, inputs); }
  std::string adapter_text() const {
    return read_file(assignment.job_directory + "/adapter/adapter_model.safetensors");
  }
  std::vector<std::string> metrics() const {
    return read_lines(assignment.job_directory + "/metrics.csv");
  }
  static std::vector<std::string> read_lines(const std::string& path) {
    std::vector<std::string> lines;
    std::string line;
    for (const char c : read_file(path)) {
      if (c == '\n')
        lines.push_back(std::exchange(line, ""));
      else
        line += c;
    }
    return lines;
  }
};

/// 32 rows, global batch 6 (the last batch of an epoch is short: 2 rows), 20 steps in 3.3 epochs.
inline ToyJob make_toy_job(const std::string& name) {
  ToyJob job;
  job.root = galley::testing::scratch_directory(name);
  const std::string model = job.root + "/model";
  model::testing::write_toy_folder(model, model::testing::toy_config_json());
  job.sets = {toy_rows(32, 120, 3)};
  TrainAssignment& assignment = job.assignment;
  assignment.job_directory = job.root + "/job";
  assignment.token_file = job.root + "/tokens.bin";
  assignment.micro_batch_tokens = 40;
  assignment.capacity_bytes = uint64_t{256} << 20;
  assignment.checkpoint_every_s = 1e9;
  model::TrainSpec& spec = assignment.spec;
  spec.name = name;
  spec.model = model;
  spec.data = {{"/data.jsonl", 1}};
  spec.lora = {.rank = 4, .alpha = 8, .dropout = 0.1};
  spec.learning_rate = 1e-2;
  spec.global_batch = 6;
  spec.sequence = 64;
  spec.max_steps = 20;
  spec.weight_decay = 0.01;
  spec.seed = 11;
  // Bits are compared between jobs: the clock must not have a say.
  spec.kernels = device::kernel_set_name(device::best_kernel_set());
  job.write_tokens();
  return job;
}

class FakeEvents : public JobEvents {
 public:
  void alive(const std::string& what) override {
    if (on_alive) on_alive(what);
  }
  void started(int64_t step, int64_t total_steps, const std::string& text) override {
    started_at = step;
    total = total_steps;
    note = text;
  }
  void progress(const JobProgress& progress) override {
    steps.push_back(progress);
    if (on_progress) on_progress(progress);
  }
  void checkpointed(int64_t step, double) override { checkpoints.push_back(step); }
  void warn(const std::string& message) override { warnings.push_back(message); }
  void waiting() override {}
  JobCommand command() override {
    const int64_t done = steps.empty() ? started_at : steps.back().step;
    if (stop_at >= 0 && done >= stop_at) return JobCommand::kStop;
    if (!steps.empty() && checkpoint_at == done) return JobCommand::kCheckpoint;
    return JobCommand::kNone;
  }

  int64_t stop_at = -1, checkpoint_at = -1;  // steps done
  int64_t started_at = -1, total = -1;
  std::string note;
  std::vector<JobProgress> steps;
  std::vector<int64_t> checkpoints;
  std::vector<std::string> warnings;
  std::function<void(const std::string&)> on_alive;
  std::function<void(const JobProgress&)> on_progress;
};

/// Runs until `stop_at` steps are done.
inline JobResult run_until(const ToyJob& job, int64_t stop_at, FakeEvents* events = nullptr) {
  FakeEvents own;
  FakeEvents& used = events == nullptr ? own : *events;
  used.stop_at = stop_at;
  return run_job(job.assignment, used);
}

}  // namespace galley::trainer::testing
