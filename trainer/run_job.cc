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
#include "trainer/batch_split.h"
#include "trainer/checkpoint.h"
#include "trainer/data_order.h"
#include "trainer/finished.h"
#include "trainer/kernels.h"
#include "trainer/metrics.h"
#include "trainer/pipeline_run.h"
#include "trainer/resume.h"
#include "trainer/schedule.h"
#include "trainer/train_step.h"
#include "trainer/worker_group.h"

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
  Session(const TrainAssignment& assignment, JobEvents& events, GroupTransport* transport)
      : assignment_(assignment),
        spec_(assignment.spec),
        events_(events),
        group_(assignment.layout, assignment.group_rank, transport),
        config_(model::read_model_config(spec_.model)),
        weights_(open_weights()),
        tokens_(text::TokenFile::open(assignment.token_file)),
        linears_(model::adapted_linears(config_, spec_.lora)),
        order_(source_rows(tokens_, spec_), spec_.global_batch, spec_.seed),
        split_(assignment.layout.dp_size, assignment.replica_shares, most_rows()),
        batcher_(tokens_, assignment.micro_batch_tokens, most_rows()),
        schedule_(schedule_of(spec_, order_.total_steps(spec_.epochs, spec_.max_steps))) {
    if (group_.leads()) {
      make_directories(assignment.job_directory);
      sweep_temporaries(assignment.job_directory);
    }
    lengths_.reserve(static_cast<size_t>(most_rows()));
    if (tokens_.summary().highest_id >= config_.vocab_size) {
      throw Error(
          Reason::kBadData,
          cat("the training rows hold token ", tokens_.summary().highest_id, ", the model has ",
              config_.vocab_size, " tokens: wrong tokenizer for ", spec_.model));
    }
  }

  JobResult run() {
    describe_inputs();
    if (const std::optional<JobResult> done = finished_before()) return *done;
    if (!assignment_.precision_note.empty()) warn(assignment_.precision_note);
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
    for (const std::string& warning : warnings) warn(warning);
    return weights;
  }

  int64_t most_rows() const { return std::min(spec_.global_batch, order_.samples_per_epoch()); }

  /// Of a group one worker says what all would say.
  void warn(const std::string& text) {
    if (group_.leads()) events_.warn(text);
  }

  /// The leader looks, and all know: nobody waits for one that has returned.
  std::optional<JobResult> finished_before() {
    std::optional<JobResult> done;
    if (group_.leads()) done = read_finished(assignment_.job_directory, record_, config_);
    if (done) events_.started(done->last.step, done->last.total_steps, "already finished");
    if (group_.from_leader(done ? "finished" : "") != "finished") return std::nullopt;
    return done ? done : JobResult{};
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
    record_.layout = assignment_.layout;
  }

  void find_checkpoint() {
    if (group_.leads()) {
      checkpoint_ = newest_checkpoint(assignment_.job_directory, &notes_, PutAside::kYes);
    }
    const std::string chosen =
        group_.from_leader(checkpoint_ ? cat(checkpoint_->step, " ", checkpoint_->path) : "");
    if (chosen.empty()) return;
    const size_t space = chosen.find(' ');
    checkpoint_ = {.path = chosen.substr(space + 1),
                   .step = parse_int(chosen.substr(0, space)).value_or(0)};
    const CheckpointRecord saved = read_checkpoint_record(checkpoint_->path);
    require_same_job(saved, record_, checkpoint_->path);
    kernels_.checkpoint = saved.kernels;
    kernels_.checkpoint_measured = saved.kernels_measured;
  }

  KernelDecision choose_kernels() {
    kernels_.pin = spec_.kernels;
    kernels_.may_round_inputs = assignment_.may_round_inputs;
    kernels_.work = training_work(config_, assignment_.weight_dtype, assignment_.micro_batch_tokens,
                                  assignment_.threads, assignment_.cpus);
    events_.alive("choose the kernels");
    if (group_.alone()) return decide_kernels(assignment_.job_directory, kernels_);
    return agree_on_kernels(assignment_.job_directory, kernels_, group_);
  }

  void open_device() {
    const KernelDecision decision = choose_kernels();
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
                                  assignment_.weight_dtype, group_.place());
    network_ = nn::TrainNetwork::create(
        *device_, *stream_, ops_, config_, *base_, memory_settings(), spec_.lora.dropout,
        spec_.seed, {.place = group_.place(), .communicators = group_.communicators()});
    pipeline_.emplace(*network_, group_, config_, linears_, assignment_.slowdown);
    pipeline_->reserve(batcher_.most_batches());
    pipeline_->throttle().set_sign([this] { events_.alive(cat("step ", step_ + 1)); });
    shards_ = group_.first_replica_shards(config_, linears_);
    if (assignment_.planned_bytes != 0 && assignment_.planned_bytes != device_->allocated_bytes()) {
      throw Error(Reason::kInternal,
                  cat("the plan said ", assignment_.planned_bytes, " bytes, the trainer allocates ",
                      device_->allocated_bytes(), "; please report this with the log"));
    }
  }

  /// This worker's part of a whole vector of the adapter.
  void copy_in(float* to, const std::vector<float>& whole) {
    std::vector<float> own(network_->num_trainable());
    model::take_shard(network_->shards(), whole, own);
    if (own.empty()) return;
    device_->copy_to_device(*stream_, to, own.data(), own.size() * sizeof(float));
    device_->synchronize(*stream_);
  }
  /// The whole vector, to the leader; of a group all workers call it.
  std::vector<float> copy_out(const float* from) {
    std::vector<float> own(network_->num_trainable());
    if (!own.empty()) {
      device_->copy_to_host(*stream_, own.data(), from, own.size() * sizeof(float));
      device_->synchronize(*stream_);
    }
    return group_.gather(network_->shards(), own, shards_);
  }

  void resume() {
    if (checkpoint_) {
      const CheckpointState state = read_checkpoint(checkpoint_->path);
      if (state.values.size() != network_->shards().num_whole) {
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
    progress_.step = step_;
    progress_.total_steps = schedule_.total_steps;
    progress_.checkpoint_step = checkpoint_step_;
    progress_.allocated_bytes = device_->allocated_bytes();
    if (!group_.leads()) return;
    metrics_.emplace(path_join(assignment_.job_directory, "metrics.csv"), step_);
    events_.started(step_, schedule_.total_steps, join(notes_, "; "));
  }

  void poll() {
    const JobCommand command = events_.command();
    if (command == JobCommand::kStop) stop_ = true;
    if (command == JobCommand::kCheckpoint) checkpoint_asked_ = true;
  }

  bool checkpoint_is_due() const {
    return checkpoint_asked_ || seconds_since(last_checkpoint_) >= assignment_.checkpoint_every_s;
  }
  /// What the leader asks of all workers at the end of a step.
  uint32_t flags() {
    poll();
    return (stop_ ? uint32_t{kFlagStop} : 0u) |
           (checkpoint_is_due() ? uint32_t{kFlagCheckpoint} : 0u);
  }

  JobResult train() {
    last_checkpoint_ = Clock::now();
    poll();
    if (group_.from_leader(stop_ ? "stop" : "") == "stop") return end();
    while (step_ < schedule_.total_steps) {
      poll();
      // Of a group the leader's word counts, at the end of a step.
      if (stop_ && group_.alone()) break;
      const uint32_t asked = one_step();
      const bool stop = (asked & kFlagStop) != 0;
      if (step_ < schedule_.total_steps && !stop && (asked & kFlagCheckpoint) != 0) {
        save();
        last_checkpoint_ = Clock::now();
      }
      if (stop) break;
    }
    return end();
  }

  /// Whatever the leader fails at here, the others fail, too.
  JobResult end() {
    if (step_ > checkpoint_step_) save();
    const JobResult result = result_of_run();
    group_.from_leader("written");
    return result;
  }

  JobResult result_of_run() {
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

  /// This worker's micro batches of a global batch, and what the whole batch holds.
  StepWork work_of(std::span<const uint32_t> rows, const DataPosition& position) {
    StepWork work{.network = network_.get(),
                  .optimizer = ops_.optimizer.get(),
                  .pipeline = &*pipeline_,
                  .group = &group_,
                  .leader_flags = [this] { return flags(); }};
    lengths_.clear();
    for (const uint32_t row : rows) {
      lengths_.push_back(tokens_.row_length(row));
      work.num_tokens += tokens_.row_length(row);
      work.num_targets += tokens_.row_targets(row);
    }
    work.batches = batcher_.cut(split_.take(rows, lengths_, group_.position().dp_rank), position);
    return work;
  }

  /// Returns what the leader asks for.
  uint32_t one_step() {
    const Clock::time_point begin = Clock::now();
    const int64_t step = step_ + 1;
    const DataPosition position = order_.position(step);
    const std::span<const uint32_t> rows = order_.batch(position);
    const OptimizerSettings settings{spec_.beta1, spec_.beta2, spec_.epsilon, spec_.weight_decay,
                                     spec_.clip_norm};
    const double rate = schedule_.at(step);
    const StepOutcome outcome =
        train_step(work_of(rows, position), settings, step, rate, [&](size_t micro) {
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
    if (group_.leads()) {
      metrics_->append(progress_, unix_seconds());
      events_.progress(progress_);
    }
    return outcome.flags;
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
    checkpoint_step_ = progress_.checkpoint_step = step_;
    checkpoint_asked_ = false;
    if (!group_.leads()) return;
    write_checkpoint(assignment_.job_directory, state, assignment_.keep_checkpoints);
    events_.checkpointed(step_, seconds_since(begin));
  }

  /// Order: adapter, then the note that the job is done. A kill in between does the adapter again.
  void finish(JobResult* result) {
    model::Adapter adapter;
    adapter.settings = spec_.lora;
    adapter.linears = linears_;
    adapter.values = copy_out(network_->parameters());
    adapter.base_model = spec_.model;
    result->last = progress_;
    if (!group_.leads()) return;
    result->adapter_directory = adapter_directory(assignment_.job_directory);
    events_.alive("write the adapter");
    model::write_adapter(result->adapter_directory, adapter);
    record_.step = step_;
    write_finished(assignment_.job_directory, record_, *result);
  }

  const TrainAssignment& assignment_;
  const model::TrainSpec& spec_;
  JobEvents& events_;
  const WorkerGroup group_;
  const model::ModelConfig config_;
  const model::ModelWeights weights_;
  const text::TokenFile tokens_;
  const std::vector<model::AdaptedLinear> linears_;
  DataOrder order_;
  BatchSplit split_;
  MicroBatcher batcher_;
  std::vector<uint32_t> lengths_;  // of the rows of a global batch
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
  std::optional<PipelineRun> pipeline_;
  std::vector<model::AdapterShards> shards_;  // of the first replica
  std::optional<MetricsFile> metrics_;        // the leader's
  JobProgress progress_;
  int64_t step_ = 0;  // optimizer steps done
  int64_t checkpoint_step_ = 0;
  Clock::time_point last_checkpoint_;
  bool stop_ = false, checkpoint_asked_ = false;
};

}  // namespace

JobResult run_job(const TrainAssignment& assignment, JobEvents& events, GroupTransport* transport) {
  if (transport == nullptr) return Session(assignment, events, nullptr).run();
  transport->set_wait_check([&events] { events.waiting(); });
  try {
    const JobResult result = Session(assignment, events, transport).run();
    transport->set_wait_check({});
    return result;
  } catch (...) {
    transport->sends().drop();  // their buffers are gone
    transport->abort();         // nobody shall wait for this worker
    throw;
  }
}

}  // namespace galley::trainer
