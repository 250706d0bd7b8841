#include "trainer/run_job.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/model/adapter_file.h"
#include "engine/model/weights.h"
#include "engine/nn/network.h"
#include "engine/text/token_file.h"
#include "trainer/checkpoint.h"
#include "trainer/data_order.h"
#include "trainer/finished.h"
#include "trainer/kernels.h"
#include "trainer/metrics.h"
#include "trainer/resume.h"
#include "trainer/schedule.h"
#include "trainer/train_step.h"

namespace galley::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<SourceRows> source_rows(const text::TokenFile& tokens, const model::TrainSpec& spec) {
  std::vector<SourceRows> sources;
  for (const text::TokenInput& input : tokens.summary().inputs) {
    SourceRows source{.num_rows = input.num_rows};
    if (sources.size() < spec.data.size()) source.weight = spec.data[sources.size()].weight;
    sources.push_back(source);
  }
  return sources;
}

/// One run of a job in this worker.
class Session {
 public:
  Session(const TrainAssignment& assignment, JobEvents& events)
      : assignment_(assignment),
        spec_(assignment.spec),
        events_(events),
        config_(model::read_model_config(spec_.model)),
        weights_(open_weights()),
        tokens_(text::TokenFile::open(assignment.token_file)),
        linears_(model::adapted_linears(config_, spec_.lora)),
        order_(source_rows(tokens_, spec_), spec_.global_batch, spec_.seed),
        batcher_(tokens_, assignment.micro_batch_tokens,
                 std::min(spec_.global_batch, order_.samples_per_epoch())),
        schedule_(schedule_of(spec_, order_.total_steps(spec_.epochs, spec_.max_steps))) {
    make_directories(assignment.job_directory);
    sweep_temporaries(assignment.job_directory);
    if (tokens_.summary().highest_id >= config_.vocab_size) {
      throw Error(
          Reason::kBadData,
          cat("the training rows hold token ", tokens_.summary().highest_id, ", the model has ",
              config_.vocab_size, " tokens: wrong tokenizer for ", spec_.model));
    }
  }

  JobResult run() {
    describe_inputs();
    if (std::optional<JobResult> done =
            read_finished(assignment_.job_directory, record_, config_)) {
      events_.started(done->last.step, done->last.total_steps, "already finished");
      return *done;
    }
    if (!assignment_.precision_note.empty()) events_.warn(assignment_.precision_note);
    find_checkpoint();
    open_device();
    load();
    resume();
    return train();
  }

 private:
  model::ModelWeights open_weights() {
    std::vector<std::string> warnings;
    model::ModelWeights weights = model::ModelWeights::open(spec_.model, config_, &warnings);
    for (const std::string& warning : warnings) events_.warn(warning);
    return weights;
  }

  /// What a checkpoint of this run says, as far as it is known before the device is open.
  void describe_inputs() {
    record_.galley_version = GALLEY_VERSION_TEXT;
    record_.schedule = schedule_;
    record_.spec = spec_;
    record_.spec_hash = model::spec_hash(spec_);
    record_.tokens_hash = tokens_.inputs_hash();
    if (const Json* inputs = tokens_.info().find("inputs")) record_.tokens_inputs = *inputs;
    record_.model_fingerprint = weights_.fingerprint();
    record_.linears = linears_;
    record_.threads = assignment_.threads;
    record_.micro_batch_tokens = assignment_.micro_batch_tokens;
    record_.weight_dtype = dtype_name(assignment_.weight_dtype);
  }

  void find_checkpoint() {
    checkpoint_ = newest_checkpoint(assignment_.job_directory, &notes_, PutAside::kYes);
    if (!checkpoint_) return;
    const CheckpointRecord saved = read_checkpoint_record(checkpoint_->path);
    require_same_job(saved, record_, checkpoint_->path);
    kernels_.checkpoint = saved.kernels;
    kernels_.checkpoint_measured = saved.kernels_measured;
  }

  void open_device() {
    kernels_.pin = spec_.kernels;
    kernels_.may_round_inputs = assignment_.may_round_inputs;
    kernels_.work = training_work(config_, assignment_.weight_dtype, assignment_.micro_batch_tokens,
                                  assignment_.threads, assignment_.cpus);
    events_.alive("choose the kernels");
    const KernelDecision decision = decide_kernels(assignment_.job_directory, kernels_);
    device::HostDeviceOptions options;
    options.capacity_bytes = assignment_.capacity_bytes;
    options.num_threads = assignment_.threads;
    options.cpus = assignment_.cpus;
    options.kernels = decision.kernels;
    device_ = device::HostDevice::create(options);
    stream_ = device_->create_stream();
    ops_ = device_->all_ops(*stream_);
    record_.kernels = device::kernel_set_name(device_->kernels());
    record_.kernels_measured = decision.measured;
    notes_.push_back(decision.text);
    record_.processor = device_->identity().name;
  }

  model::MemorySettings memory_settings() const {
    const auto longest = static_cast<int64_t>(tokens_.summary().longest);
    model::MemorySettings settings;
    settings.linears = linears_;
    settings.weight_dtype = assignment_.weight_dtype;
    settings.micro_batch_tokens = assignment_.micro_batch_tokens;
    settings.micro_batch_rows = std::min(spec_.global_batch, assignment_.micro_batch_tokens);
    settings.max_position = std::min(longest > 0 ? longest : spec_.sequence, spec_.sequence);
    settings.recompute_blocks = assignment_.recompute_blocks;
    settings.dropout = spec_.lora.dropout > 0;
    return settings;
  }

  void load() {
    const size_t count = model::weight_specs(config_).size();
    size_t loaded = 0;
    const nn::BaseWeights::Source source = [&](const model::WeightId& id) {
      events_.alive(cat("load ", 100 * loaded++ / count, " %"));
      return weights_.get(id);
    };
    base_ = nn::BaseWeights::load(*device_, *stream_, *ops_.linear, config_, source,
                                  assignment_.weight_dtype);
    network_ = nn::TrainNetwork::create(*device_, *stream_, ops_, config_, *base_,
                                        memory_settings(), spec_.lora.dropout, spec_.seed);
    if (assignment_.planned_bytes != 0 && assignment_.planned_bytes != device_->allocated_bytes()) {
      throw Error(Reason::kInternal,
                  cat("the plan said ", assignment_.planned_bytes, " bytes, the trainer allocates ",
                      device_->allocated_bytes(), "; please report this with the log"));
    }
  }

  void copy_in(float* to, const std::vector<float>& from) {
    device_->copy_to_device(*stream_, to, from.data(), from.size() * sizeof(float));
    device_->synchronize(*stream_);
  }
  std::vector<float> copy_out(const float* from) {
    std::vector<float> values(network_->num_trainable());
    device_->copy_to_host(*stream_, values.data(), from, values.size() * sizeof(float));
    device_->synchronize(*stream_);
    return values;
  }

  void resume() {
    if (checkpoint_) {
      const CheckpointState state = read_checkpoint(checkpoint_->path);
      if (state.values.size() != network_->num_trainable()) {
        throw Error(Reason::kBadCheckpoint, checkpoint_->path + " holds another adapter's tensors");
      }
      copy_in(network_->parameters(), state.values);
      copy_in(network_->first_moments(), state.first_moments);
      copy_in(network_->second_moments(), state.second_moments);
      step_ = checkpoint_step_ = state.record.step;
      progress_.loss = state.record.loss;
      progress_.gradient_norm = state.record.gradient_norm;
      progress_.learning_rate = state.record.learning_rate;
      progress_.epoch = static_cast<double>(step_) / static_cast<double>(order_.steps_per_epoch());
      if (std::string note = bits_note(state.record, record_); !note.empty()) {
        notes_.push_back(std::move(note));
      }
    } else {
      copy_in(network_->parameters(),
              model::initial_adapter(linears_, spec_.lora.init, spec_.seed));
    }
    metrics_.emplace(path_join(assignment_.job_directory, "metrics.csv"), step_);
    progress_.step = step_;
    progress_.total_steps = schedule_.total_steps;
    progress_.checkpoint_step = checkpoint_step_;
    progress_.allocated_bytes = device_->allocated_bytes();
    events_.started(step_, schedule_.total_steps, join(notes_, "; "));
  }

  void poll() {
    const JobCommand command = events_.command();
    if (command == JobCommand::kStop) stop_ = true;
    if (command == JobCommand::kCheckpoint) checkpoint_asked_ = true;
  }

  JobResult train() {
    Clock::time_point last_checkpoint = Clock::now();
    while (step_ < schedule_.total_steps) {
      poll();
      if (stop_) break;
      one_step();
      const bool due = seconds_since(last_checkpoint) >= assignment_.checkpoint_every_s;
      if (step_ < schedule_.total_steps && !stop_ && (due || checkpoint_asked_)) {
        save();
        last_checkpoint = Clock::now();
      }
    }
    if (step_ > checkpoint_step_) save();
    JobResult result;
    result.planned_bytes = assignment_.planned_bytes;
    result.allocated_bytes = device_->allocated_bytes();
    if (step_ < schedule_.total_steps) {
      result.outcome = JobResult::Outcome::kStopped;
      result.last = progress_;
      return result;
    }
    finish(&result);
    return result;
  }

  void one_step() {
    const Clock::time_point begin = Clock::now();
    const int64_t step = step_ + 1;
    const DataPosition position = order_.position(step);
    const std::span<const uint32_t> rows = order_.batch(position);
    const std::span<const MicroBatch> batches = batcher_.cut(rows, position);
    const OptimizerSettings settings{spec_.beta1, spec_.beta2, spec_.epsilon, spec_.weight_decay,
                                     spec_.clip_norm};
    const double rate = schedule_.at(step);
    const StepOutcome outcome =
        train_step(*network_, *ops_.optimizer, batches, settings, step, rate, [&](size_t micro) {
          events_.alive(cat("step ", step, ", micro batch ", micro + 1));
          poll();
        });
    device_->synchronize(*stream_);
    step_ = step;
    const double seconds = seconds_since(begin);
    progress_.step = step;
    progress_.epoch = static_cast<double>(position.epoch) +
                      static_cast<double>(position.index + static_cast<int64_t>(rows.size())) /
                          static_cast<double>(order_.samples_per_epoch());
    progress_.loss = outcome.loss;
    progress_.gradient_norm = outcome.gradient_norm;
    progress_.learning_rate = rate;
    progress_.step_tokens = outcome.num_tokens;
    progress_.step_targets = outcome.num_targets;
    progress_.tokens_per_second = static_cast<double>(outcome.num_tokens) / std::max(seconds, 1e-9);
    progress_.allocated_bytes = device_->allocated_bytes();
    metrics_->append(progress_, unix_seconds());
    events_.progress(progress_);
  }

  void save() {
    const Clock::time_point begin = Clock::now();
    events_.alive(cat("checkpoint ", step_));
    CheckpointState state;
    state.record = record_;
    state.record.step = step_;
    state.record.next_position = order_.position(step_ + 1);
    state.record.loss = progress_.loss;
    state.record.gradient_norm = progress_.gradient_norm;
    state.record.learning_rate = progress_.learning_rate;
    state.values = copy_out(network_->parameters());
    state.first_moments = copy_out(network_->first_moments());
    state.second_moments = copy_out(network_->second_moments());
    write_checkpoint(assignment_.job_directory, state, assignment_.keep_checkpoints);
    checkpoint_step_ = progress_.checkpoint_step = step_;
    checkpoint_asked_ = false;
    events_.checkpointed(step_, seconds_since(begin));
  }

  /// Order: adapter, then the note that the job is done. A kill in between does the adapter again.
  void finish(JobResult* result) {
    model::Adapter adapter;
    adapter.settings = spec_.lora;
    adapter.linears = linears_;
    adapter.values = copy_out(network_->parameters());
    adapter.base_model = spec_.model;
    result->adapter_directory = adapter_directory(assignment_.job_directory);
    events_.alive("write the adapter");
    model::write_adapter(result->adapter_directory, adapter);
    result->last = progress_;
    record_.step = step_;
    write_finished(assignment_.job_directory, record_, *result);
  }

  const TrainAssignment& assignment_;
  const model::TrainSpec& spec_;
  JobEvents& events_;
  const model::ModelConfig config_;
  const model::ModelWeights weights_;
  const text::TokenFile tokens_;
  const std::vector<model::AdaptedLinear> linears_;
  DataOrder order_;
  MicroBatcher batcher_;
  const Schedule schedule_;
  CheckpointRecord record_;
  std::vector<std::string> notes_;
  std::optional<FoundCheckpoint> checkpoint_;
  KernelRequest kernels_;
  // In the order of their making: each needs those before it.
  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<device::Stream> stream_;
  device::OpSet ops_;
  std::unique_ptr<nn::BaseWeights> base_;
  std::unique_ptr<nn::TrainNetwork> network_;
  std::optional<MetricsFile> metrics_;
  JobProgress progress_;
  int64_t step_ = 0;  // optimizer steps done
  int64_t checkpoint_step_ = 0;
  bool stop_ = false, checkpoint_asked_ = false;
};

}  // namespace

JobResult run_job(const TrainAssignment& assignment, JobEvents& events) {
  return Session(assignment, events).run();
}

}  // namespace galley::trainer
