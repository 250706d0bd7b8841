// Speed of opening a model folder and of packing its weights: every pair of types beside a plain
// copy on the same threads, then whole folders, made here and removed at the end.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/core/strings.h"
#include "engine/nn/network.h"
#include "tests/bench/bench_program.h"

namespace galley::bench {
namespace {

using namespace galley::device;  // NOLINT: a benchmark of that module and what loads into it

constexpr const char* kHelp =
    "bench_load [FLAG...]: packing of weights, opening and loading of model folders\n"
    "  --filter TEXT      only cases whose name has TEXT, e.g. \"pack BF16\"\n"
    "  --threads N[,N]    default: 1 and all cores\n"
    "  --json             JSON lines\n"
    "  --cpu-time         processor time instead of wall time for packing (hides waiting)\n"
    "Folders are made below TMPDIR and need 1.1 GB there.\n";

constexpr int kSamples = 5;
constexpr uint64_t kColdBytes = uint64_t{192} << 20;  // of copies in turn, on either side

struct Case {
  const BenchArguments& arguments;
  const Reporter& reporter;
  int threads;

  double now() const { return bench_seconds(arguments.clock, threads); }
};

struct PackShape {
  int64_t out, in;
};

/// One pair of types at one shape; bytes read and written count, as they do for the copy.
void pack_line(const Case& c, HostDevice* device, LinearOps* ops, PeakMeter* meter, DType source,
               WeightKind kind, PackShape shape) {
  const DType packed = weight_dtype(kind);
  const std::string name =
      cat("pack ", dtype_name(source), " to ", dtype_name(packed), " ", shape.out, "x", shape.in);
  if (!c.arguments.wants(name)) return;
  const uint64_t from_bytes = static_cast<uint64_t>(shape.out * shape.in) * dtype_bytes(source);
  const uint64_t to_bytes = packed_weight_bytes(
      device->traits(), packed, static_cast<uint64_t>(shape.out), static_cast<uint64_t>(shape.in));
  const uint64_t copies = kColdBytes / std::min(from_bytes, to_bytes) + 1;
  const Buffer from = device->allocate(from_bytes * copies, "source");
  const Buffer to = device->allocate(to_bytes * copies, "packed");
  Random draw(1, 2);
  auto* words = from.at<uint32_t>(0);
  for (uint64_t i = 0; i < from.bytes() / 4; ++i) {
    words[i] = i < 4096 ? draw.next_u32() : words[i - 4096];
  }
  std::vector<double> fractions, rates;
  for (int sample = 0; sample <= kSamples; ++sample) {
    const double before = meter->copy_bytes_per_second();
    const double begin = c.now();
    for (uint64_t i = 0; i < copies; ++i) {
      const WeightHandle weight = {kind, &to, i * to_bytes, shape.out, shape.in, nullptr};
      ops->pack_weight(weight, source, from.at<std::byte>(i * from_bytes), 0, shape.out);
    }
    const double seconds = c.now() - begin;
    if (sample == 0) continue;  // takes the pages
    rates.push_back(static_cast<double>((from_bytes + to_bytes) * copies) / seconds);
    fractions.push_back(rates.back() / std::max(before, meter->copy_bytes_per_second()));
    rates.back() *= 1e-9;
  }
  BenchRecord record;
  record.name = name;
  record.unit = "GB/s";
  record.value = spread_of(rates);
  record.fraction = spread_of(fractions).median;
  record.limit = "memory copy";
  record.rate = record.value.median;
  record.rate_unit = "GB/s";
  record.threads = c.threads;
  c.reporter.add(record);
}

void pack_lines(const Case& c) {
  const auto device = HostDevice::create({.num_threads = c.threads});
  const auto stream = device->create_stream();
  const OpSet ops = device->all_ops(*stream);
  PeakMeter meter(c.threads, {}, c.arguments.clock);
  for (const DType source : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const WeightKind kind : {WeightKind::kF32, WeightKind::kBf16}) {
      for (const PackShape shape : {PackShape{576, 576}, PackShape{1536, 576}, PackShape{576, 1536},
                                    PackShape{4096, 4096}}) {
        pack_line(c, device.get(), ops.linear.get(), &meter, source, kind, shape);
      }
    }
  }
}

/// A Llama of the given sizes in bf16.
struct FolderShape {
  std::string name;
  int64_t hidden, intermediate, num_layers, vocabulary, num_shards;
};

/// A folder with random weights, removed at the end.
class ModelFolder {
 public:
  explicit ModelFolder(const FolderShape& shape) {
    std::string path = (std::filesystem::temp_directory_path() / "galley-bench-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw_errno("create", path, errno);
    path_ = path;
    write_config(shape);
    config_ = model::read_model_config(path_);
    write_shards(static_cast<size_t>(shape.num_shards));
  }
  ~ModelFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::string& path() const { return path_; }
  const model::ModelConfig& config() const { return config_; }

 private:
  void write_config(const FolderShape& shape) {
    Json json = Json::object();
    json.set("architectures", Json(Json::Array{Json("LlamaForCausalLM")}))
        .set("model_type", "llama")
        .set("hidden_act", "silu")
        .set("vocab_size", shape.vocabulary)
        .set("hidden_size", shape.hidden)
        .set("intermediate_size", shape.intermediate)
        .set("num_hidden_layers", shape.num_layers)
        .set("num_attention_heads", shape.hidden / 32)
        .set("num_key_value_heads", shape.hidden / 32)
        .set("max_position_embeddings", 2048)
        .set("rms_norm_eps", 1e-5)
        .set("tie_word_embeddings", true)
        .set("torch_dtype", "bfloat16");
    write_file_atomically(path_join(path_, "config.json"), json.dump());
  }

  void write_shards(size_t num_shards) {
    const std::vector<model::WeightSpec> specs = model::weight_specs(config_);
    Json map = Json::object();
    Json::Object entries;
    for (size_t shard = 0; shard < num_shards; ++shard) {
      const std::string file = format("model-%05zu-of-%05zu.safetensors", shard + 1, num_shards);
      const size_t begin = specs.size() * shard / num_shards;
      const size_t end = specs.size() * (shard + 1) / num_shards;
      Json::Object header;
      uint64_t at = 0;
      for (size_t i = begin; i < end; ++i) {
        uint64_t bytes = 2;
        Json shape = Json::array();
        for (const int64_t size : specs[i].shape) {
          bytes *= static_cast<uint64_t>(size);
          shape.push(size);
        }
        Json entry = Json::object();
        entry.set("dtype", "BF16").set("shape", std::move(shape));
        entry.set("data_offsets", Json(Json::Array{Json(at), Json(at + bytes)}));
        header.emplace_back(specs[i].name, std::move(entry));
        entries.emplace_back(specs[i].name, file);
        at += bytes;
      }
      write_shard(path_join(path_, file), Json(std::move(header)).dump(), at);
    }
    map.set("weight_map", Json(std::move(entries)));
    write_file_atomically(path_join(path_, "model.safetensors.index.json"), map.dump());
  }

  static void write_shard(const std::string& path, const std::string& header, uint64_t bytes) {
    std::vector<uint16_t> values(1 << 19);
    Random draw(5, 1);
    for (uint16_t& value : values) value = f32_to_bf16(draw.uniform_f32() - 0.5f);
    std::ofstream file(path, std::ios::binary);
    const uint64_t size = header.size();
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file << header;
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t part = std::min<uint64_t>(bytes - done, values.size() * sizeof(uint16_t));
      file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(part));
      done += part;
    }
    if (!file.flush()) throw_errno("write", path, errno);
  }

  std::string path_;
  model::ModelConfig config_;
};

void time_line(const Reporter& reporter, const std::string& name, std::vector<double> seconds) {
  for (double& value : seconds) value *= 1e3;
  BenchRecord record;
  record.name = name;
  record.unit = "ms";
  record.value = spread_of(std::move(seconds));
  record.threads = 1;
  reporter.add(record);
}

void open_line(const Case& c, const ModelFolder& folder, const std::string& name) {
  std::vector<double> seconds;
  for (int sample = 0; sample < kSamples; ++sample) {
    const double begin = seconds_of(CLOCK_MONOTONIC);
    const model::ModelConfig config = model::read_model_config(folder.path());
    model::ModelWeights::open(folder.path(), config);
    seconds.push_back(seconds_of(CLOCK_MONOTONIC) - begin);
  }
  time_line(c.reporter, "open " + name, seconds);
}

/// Peak of resident memory, after the counter was set back where the system allows it.
uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) << 10;
  }
  return 0;
}
void reset_peak_resident() { std::ofstream("/proc/self/clear_refs") << "5"; }

void drop_from_memory(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const FileDescriptor fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::fdatasync(fd.get());
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

enum class Pages { kCached, kCold };

void load_line(const Case& c, const ModelFolder& folder, const std::string& name, Pages pages) {
  std::vector<double> rates, overhead;
  for (int sample = 0; sample < 3; ++sample) {
    if (pages == Pages::kCold) drop_from_memory(folder.path());
    const auto device = HostDevice::create({.num_threads = c.threads});
    const auto stream = device->create_stream();
    const OpSet ops = device->all_ops(*stream);
    reset_peak_resident();
    const uint64_t before = peak_resident_bytes();
    const double begin = seconds_of(CLOCK_MONOTONIC);
    const auto weights = model::ModelWeights::open(folder.path(), folder.config());
    const auto base = nn::BaseWeights::load(*device, *stream, *ops.linear, folder.config(), weights,
                                            DType::kBf16);
    rates.push_back(1e-9 * static_cast<double>(base->bytes()) /
                    (seconds_of(CLOCK_MONOTONIC) - begin));
    overhead.push_back(1e-6 * (static_cast<double>(peak_resident_bytes() - before) -
                               static_cast<double>(base->bytes())));
  }
  BenchRecord record;
  record.name = "load " + name;
  record.unit = "GB/s";
  record.value = spread_of(rates);
  record.threads = c.threads;
  c.reporter.add(record);
  record.name = "memory beside the weights while loading " + name;
  record.unit = "MB";
  record.value = spread_of(overhead);
  c.reporter.add(record);
}

void folder_lines(const BenchArguments& arguments, const Reporter& reporter) {
  const FolderShape large = {"1 GB, 8 shards", 2048, 5632, 9, 32000, 8};
  const FolderShape many = {"10,000 tensors", 32, 32, 1111, 64, 5};
  if (arguments.wants("open " + many.name)) {
    const ModelFolder folder(many);
    open_line({arguments, reporter, 1}, folder, many.name);
  }
  if (!arguments.wants("open " + large.name) && !arguments.wants("load " + large.name)) return;
  const ModelFolder folder(large);
  open_line({arguments, reporter, 1}, folder, large.name);
  for (const int threads : arguments.threads) {
    const Case c = {arguments, reporter, threads};
    load_line(c, folder, large.name, Pages::kCached);
    load_line(c, folder, large.name + " from disk", Pages::kCold);
  }
}

int run(int argc, char** argv) {
  const BenchArguments arguments = parse_arguments(argc, argv, kHelp, {});
  const Reporter reporter(arguments.json);
  for (const int threads : arguments.threads) pack_lines({arguments, reporter, threads});
  folder_lines(arguments, reporter);
  return 0;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::run_program("bench_load", galley::bench::run, argc, argv);
}
