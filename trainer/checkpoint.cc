#include "trainer/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/h5.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"
#include "engine/model/adapter_file.h"
#include "trainer/run_job.h"

namespace galley::trainer {
namespace {

constexpr uint64_t kBlockBytes = 512;
constexpr uint64_t kReadBytes = uint64_t{1} << 20;
constexpr char kMagic[8] = {'G', 'A', 'L', 'L', 'E', 'Y', 'C', 'P'};
constexpr uint32_t kVersion = 1;
constexpr const char* kRecordName = "record";
constexpr const char* kPartNames[] = {"adapter", "first_moments", "second_moments"};

/// The user block, little-endian; the rest of its 512 bytes is zero.
struct Block {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t payload_bytes;
  char payload_hash[32];  // XXH3-128 in hexadecimal digits of the bytes behind the block
  uint64_t block_hash;    // XXH3-64 of the fields before
};
static_assert(sizeof(Block) == 64);

[[noreturn]] void broken(const std::string& path, const std::string& what) {
  throw Error(Reason::kBadCheckpoint, cat(path, ": ", what));
}

Block make_block(const std::string& payload_hash, uint64_t payload_bytes) {
  Block block{};
  std::memcpy(block.magic, kMagic, sizeof kMagic);
  block.version = kVersion;
  block.payload_bytes = payload_bytes;
  std::memcpy(block.payload_hash, payload_hash.data(), sizeof block.payload_hash);
  block.block_hash = hash64(&block, offsetof(Block, block_hash));
  return block;
}

/// Of the bytes behind the block. They are not touched in the map: a worker's memory would grow by
/// the size of its checkpoint.
std::string payload_hash(const MappedFile& file) {
  std::vector<std::byte> block(kReadBytes);
  StreamHash hash;
  for (uint64_t offset = kBlockBytes; offset < file.size(); offset += kReadBytes) {
    const size_t size = std::min<uint64_t>(kReadBytes, file.size() - offset);
    file.read(offset, block.data(), size);
    hash.update(block.data(), size);
  }
  return hash.hex();
}

/// Checks every byte of a checkpoint file.
Block check_bytes(const std::string& path) {
  const MappedFile file(path);
  Block block{};
  if (file.size() < kBlockBytes) broken(path, cat("only ", file.size(), " bytes: no checkpoint"));
  std::memcpy(&block, file.bytes(), sizeof block);
  if (std::memcmp(block.magic, kMagic, sizeof kMagic) != 0) broken(path, "no galley checkpoint");
  if (block.block_hash != hash64(&block, offsetof(Block, block_hash))) {
    broken(path, "its head is damaged");
  }
  if (block.version != kVersion) {
    throw Error(Reason::kUnsupported, cat(path, ": written in format ", block.version,
                                          ", this galley reads format ", kVersion));
  }
  const std::string_view padding = file.text().substr(sizeof block, kBlockBytes - sizeof block);
  if (padding.find_first_not_of('\0') != std::string_view::npos)
    broken(path, "its head is damaged");
  const uint64_t bytes = file.size() - kBlockBytes;
  if (bytes != block.payload_bytes) {
    broken(path,
           cat("has ", bytes, " bytes behind its head, ", block.payload_bytes, " were written"));
  }
  const std::string hash = payload_hash(file);
  if (std::memcmp(hash.data(), block.payload_hash, sizeof block.payload_hash) != 0) {
    broken(path, "its checksum is wrong: the file was damaged after it was written");
  }
  return block;
}

Json linears_json(const std::vector<model::AdaptedLinear>& linears) {
  Json list = Json::array();
  for (const model::AdaptedLinear& linear : linears) {
    list.push(Json::object()
                  .set("layer", linear.layer)
                  .set("projection", model::projection_name(linear.projection))
                  .set("rank", linear.rank)
                  .set("scaling", linear.scaling)
                  .set("in", linear.in)
                  .set("out", linear.out));
  }
  return list;
}

std::vector<model::AdaptedLinear> linears_value(const Json& json) {
  std::vector<model::AdaptedLinear> linears;
  for (const Json& entry : json.as_array()) {
    model::AdaptedLinear linear;
    linear.layer = static_cast<int>(entry.at("layer").as_int());
    linear.rank = entry.at("rank").as_int();
    linear.scaling = entry.at("scaling").as_double();
    linear.in = entry.at("in").as_int();
    linear.out = entry.at("out").as_int();
    for (int i = 0; i < model::kNumProjections; ++i) {
      const auto projection = static_cast<model::Projection>(i);
      if (model::projection_name(projection) == entry.at("projection").as_string()) {
        linear.projection = projection;
      }
    }
    linears.push_back(linear);
  }
  return linears;
}

void require_finite(const CheckpointState& state) {
  for (const auto* part : {&state.values, &state.first_moments, &state.second_moments}) {
    if (std::all_of(part->begin(), part->end(), [](float x) { return std::isfinite(x); })) continue;
    throw Error(Reason::kNumerics,
                cat("step ", state.record.step,
                    ": the adapter or its optimizer state is not finite; it is not saved"));
  }
}

void write_h5(const std::string& path, const CheckpointState& state) {
  const auto tensors = model::trainable_tensors(state.record.linears);
  const std::vector<float>* parts[] = {&state.values, &state.first_moments, &state.second_moments};
  H5File file = H5File::create(path, kBlockBytes);
  file.write_text(kRecordName, to_json(state.record).dump());
  for (size_t k = 0; k < 3; ++k) {
    file.create_group(kPartNames[k]);
    for (const model::TrainableTensor& tensor : tensors) {
      file.write_f32(cat(kPartNames[k], "/", tensor.name),
                     std::span(*parts[k]).subspan(tensor.offset, tensor.num_elements()),
                     tensor.shape);
    }
  }
  file.close();
}

/// Puts the head in front, and makes sure that all is on the disk.
void seal(const std::string& path) {
  std::string hash;
  uint64_t bytes = 0;
  {
    const MappedFile file(path);
    GALLEY_CHECK(file.size() > kBlockBytes);
    bytes = file.size() - kBlockBytes;
    hash = payload_hash(file);
  }
  const Block block = make_block(hash, bytes);
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) throw_errno("open", path, errno);
  if (::fchmod(fd.get(), 0600) != 0) throw_errno("change the mode of", path, errno);
  if (::pwrite(fd.get(), &block, sizeof block, 0) != static_cast<ssize_t>(sizeof block)) {
    throw_errno("write", path, errno);
  }
  if (::fsync(fd.get()) != 0) throw_errno("flush", path, errno);
}

struct TemporaryGuard {
  std::string path;
  ~TemporaryGuard() { ::unlink(path.c_str()); }
};

/// The step of "checkpoint-STEP.h5", or nothing.
std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kBefore = "checkpoint-", kAfter = ".h5";
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter)) return std::nullopt;
  const auto step = parse_int(
      std::string_view(name).substr(kBefore.size(), name.size() - kBefore.size() - kAfter.size()));
  return step && *step >= 0 ? step : std::nullopt;
}

/// Newest first.
std::vector<FoundCheckpoint> list_checkpoints(const std::string& job_directory) {
  std::vector<FoundCheckpoint> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(job_directory, error)) {
    const auto step = step_of(entry.path().filename().string());
    if (step) found.push_back({entry.path().string(), *step});
  }
  std::sort(found.begin(), found.end(),
            [](const FoundCheckpoint& a, const FoundCheckpoint& b) { return a.step > b.step; });
  return found;
}

CheckpointRecord parse_record(const H5File& file, const std::string& path) {
  try {
    return checkpoint_record_from_json(
        parse_json_or_throw(file.read_text(kRecordName), path, Reason::kBadCheckpoint));
  } catch (const Error& error) {
    if (error.reason() != Reason::kInternal) throw;
    broken(path, error.what());
  }
}

}  // namespace

Json to_json(const CheckpointRecord& record) {
  Json json = Json::object();
  json.set("galley_version", record.galley_version)
      .set("step", record.step)
      .set("next_epoch", record.next_position.epoch)
      .set("next_index", record.next_position.index)
      .set("learning_rate", record.schedule.learning_rate)
      .set("warmup_steps", record.schedule.warmup_steps)
      .set("total_steps", record.schedule.total_steps)
      .set("spec", model::to_json(record.spec))
      .set("spec_hash", record.spec_hash)
      .set("tokens_hash", record.tokens_hash)
      .set("tokens_inputs", record.tokens_inputs)
      .set("model_fingerprint", record.model_fingerprint)
      .set("linears", linears_json(record.linears))
      .set("kernels", record.kernels)
      .set("kernels_measured", record.kernels_measured)
      .set("processor", record.processor)
      .set("threads", record.threads)
      .set("micro_batch_tokens", record.micro_batch_tokens)
      .set("layout", model::to_json(record.layout))
      .set("weight_dtype", record.weight_dtype)
      .set("last_loss", record.loss)
      .set("last_gradient_norm", record.gradient_norm)
      .set("last_learning_rate", record.learning_rate);
  return json;
}

CheckpointRecord checkpoint_record_from_json(const Json& json) {
  CheckpointRecord record;
  record.galley_version = json.at("galley_version").as_string();
  record.step = json.at("step").as_int();
  record.next_position = {json.at("next_epoch").as_int(), json.at("next_index").as_int()};
  record.spec = model::train_spec_from_json(json.at("spec"));
  record.schedule = {record.spec.schedule, json.at("learning_rate").as_double(),
                     json.at("warmup_steps").as_int(), json.at("total_steps").as_int()};
  record.spec_hash = json.at("spec_hash").as_string();
  record.tokens_hash = json.at("tokens_hash").as_string();
  record.tokens_inputs = json.at("tokens_inputs");
  record.model_fingerprint = json.at("model_fingerprint").as_string();
  record.linears = linears_value(json.at("linears"));
  record.kernels = json.at("kernels").as_string();
  if (const Json* measured = json.find("kernels_measured")) record.kernels_measured = *measured;
  record.processor = json.at("processor").as_string();
  record.threads = static_cast<int>(json.at("threads").as_int());
  record.micro_batch_tokens = json.at("micro_batch_tokens").as_int();
  if (const Json* layout = json.find("layout")) record.layout = model::layout_from_json(*layout);
  record.weight_dtype = json.at("weight_dtype").as_string();
  record.loss = json.at("last_loss").as_double();
  record.gradient_norm = json.at("last_gradient_norm").as_double();
  record.learning_rate = json.at("last_learning_rate").as_double();
  return record;
}

std::string checkpoint_path(const std::string& job_directory, int64_t step) {
  return path_join(job_directory, cat("checkpoint-", step, ".h5"));
}

void write_checkpoint(const std::string& job_directory, const CheckpointState& state, int keep) {
  require_finite(state);
  const std::string path = checkpoint_path(job_directory, state.record.step);
  const TemporaryGuard guard{temporary_beside(path)};
  write_h5(guard.path, state);
  seal(guard.path);
  check_bytes(guard.path);
  rename_path(guard.path, path);
  sync_directory(job_directory);
  const std::vector<FoundCheckpoint> all = list_checkpoints(job_directory);
  for (size_t i = static_cast<size_t>(std::max(keep, 1)); i < all.size(); ++i) {
    remove_file_if_exists(all[i].path);
  }
}

CheckpointRecord read_checkpoint_record(const std::string& path) {
  check_bytes(path);
  return parse_record(H5File::open(path), path);
}

CheckpointState read_checkpoint(const std::string& path) {
  check_bytes(path);
  const H5File file = H5File::open(path);
  CheckpointState state;
  state.record = parse_record(file, path);
  std::vector<float>* parts[] = {&state.values, &state.first_moments, &state.second_moments};
  for (size_t k = 0; k < 3; ++k) {
    parts[k]->resize(model::num_trainable(state.record.linears));
    for (const model::TrainableTensor& tensor : model::trainable_tensors(state.record.linears)) {
      file.read_f32(cat(kPartNames[k], "/", tensor.name),
                    std::span(*parts[k]).subspan(tensor.offset, tensor.num_elements()));
    }
  }
  return state;
}

std::optional<FoundCheckpoint> newest_checkpoint(const std::string& job_directory,
                                                 std::vector<std::string>* notes,
                                                 PutAside put_aside) {
  std::vector<FoundCheckpoint> aside;
  std::optional<FoundCheckpoint> newest;
  for (const FoundCheckpoint& candidate : list_checkpoints(job_directory)) {
    try {
      check_bytes(candidate.path);
      newest = candidate;
      break;
    } catch (const Error& error) {
      if (error.reason() != Reason::kBadCheckpoint) throw;
      if (notes != nullptr) notes->push_back(cat("skipped a broken checkpoint: ", error.what()));
      aside.push_back(candidate);
    }
  }
  if (put_aside == PutAside::kYes) {
    for (const FoundCheckpoint& one : aside) {
      rename_path(one.path, path_join(job_directory, "broken-" + path_name(one.path)));
    }
  }
  return newest;
}

int64_t newest_checkpoint_step(const std::string& job_directory) {
  const auto newest = newest_checkpoint(job_directory, nullptr, PutAside::kNo);
  return newest ? newest->step : -1;
}

void export_checkpoint(const std::string& checkpoint, const std::string& folder) {
  CheckpointState state = read_checkpoint(checkpoint);
  model::Adapter adapter;
  adapter.settings = state.record.spec.lora;
  adapter.linears = std::move(state.record.linears);
  adapter.values = std::move(state.values);
  adapter.base_model = state.record.spec.model;
  model::write_adapter(folder, adapter);
}

Json inspect_checkpoint(const std::string& checkpoint) {
  const Block block = check_bytes(checkpoint);
  const H5File file = H5File::open(checkpoint);
  Json tensors = Json::array();
  for (const char* part : kPartNames) {
    for (const std::string& name : file.list(part)) {
      Json shape = Json::array();
      for (const int64_t size : file.shape(cat(part, "/", name))) shape.push(size);
      tensors.push(Json::object().set("name", cat(part, "/", name)).set("shape", std::move(shape)));
    }
  }
  Json json = Json::object();
  json.set("kind", "checkpoint")
      .set("format", static_cast<int64_t>(block.version))
      .set("bytes", block.payload_bytes + kBlockBytes)
      .set("checksum", std::string(block.payload_hash, sizeof block.payload_hash))
      .set("record", to_json(parse_record(file, checkpoint)))
      .set("tensors", std::move(tensors));
  return json;
}

}  // namespace galley::trainer
