#include "engine/model/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "engine/core/hash.h"
#include "engine/core/strings.h"
#include "engine/model/family.h"

namespace galley::model {
namespace {

constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;
constexpr size_t kMostFaultsListed = 20;
constexpr uint64_t kSampleBytes = 256;
// Disks want several reads at once; more than this in flight gains nothing.
constexpr uint64_t kReadAheadBytes = uint64_t{32} << 20;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

[[noreturn]] void throw_faults(const std::string& what, const std::vector<std::string>& faults) {
  std::string text = what;
  for (size_t i = 0; i < std::min(faults.size(), kMostFaultsListed); ++i)
    text += "\n  " + faults[i];
  if (faults.size() > kMostFaultsListed) {
    text += cat("\n  and ", faults.size() - kMostFaultsListed, " more");
  }
  throw Error(Reason::kBadModel, text);
}

/// File names of the weights, and for an index which file holds which tensor.
struct WeightFiles {
  std::vector<std::string> names;
  std::map<std::string, std::string> file_of;  // empty for a single file
};

WeightFiles read_index(const std::string& path) {
  const Json json = parse_json_or_throw(read_file(path, kMaxIndexBytes), path, Reason::kBadModel);
  const Json* map = json.find("weight_map");
  if (map == nullptr || !map->is_object() || map->as_object().empty()) {
    throw Error(Reason::kBadModel, cat(path, ": \"weight_map\" is missing or empty"));
  }
  WeightFiles files;
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->as_object()) {
    if (!file.is_string() || !is_plain_name(file.as_string())) {
      throw Error(Reason::kBadModel, cat(path, ": the file of tensor ", tensor,
                                         " must be the plain name of a file beside the index"));
    }
    names.insert(file.as_string());
    files.file_of.emplace(tensor, file.as_string());
  }
  files.names.assign(names.begin(), names.end());
  return files;
}

WeightFiles find_files(const std::string& folder) {
  const std::string single = "model.safetensors";
  const std::string index = path_join(folder, "model.safetensors.index.json");
  if (path_exists(path_join(folder, single))) return {.names = {single}, .file_of = {}};
  if (path_exists(index)) return read_index(index);
  if (path_exists(path_join(folder, "pytorch_model.bin")) ||
      path_exists(path_join(folder, "pytorch_model.bin.index.json"))) {
    throw Error(
        Reason::kUnsupported,
        cat(folder, " holds PyTorch pickles (pytorch_model.bin); convert them to safetensors"));
  }
  throw Error(Reason::kMissingPath, cat(folder,
                                        " holds neither model.safetensors nor "
                                        "model.safetensors.index.json"));
}

/// Opens all files; every bad one is named in one error.
std::vector<std::unique_ptr<SafetensorsFile>> open_all(const std::string& folder,
                                                       const WeightFiles& files) {
  std::vector<std::unique_ptr<SafetensorsFile>> opened;
  std::vector<std::string> faults;
  for (const std::string& name : files.names) {
    try {
      opened.push_back(
          std::make_unique<SafetensorsFile>(SafetensorsFile::open(path_join(folder, name))));
    } catch (const Error& error) {
      if (files.names.size() == 1) throw;
      faults.push_back(error.what());
    }
  }
  if (!faults.empty()) {
    throw_faults(cat(faults.size(), " of ", files.names.size(), " weight files in ", folder,
                     " cannot be used:"),
                 faults);
  }
  return opened;
}

using TensorsByName = std::map<std::string, const StoredTensor*>;

TensorsByName collect(const std::string& folder, const WeightFiles& files,
                      const std::vector<std::unique_ptr<SafetensorsFile>>& opened) {
  TensorsByName found;
  std::vector<std::string> faults;
  for (size_t i = 0; i < opened.size(); ++i) {
    for (const StoredTensor& tensor : opened[i]->tensors()) {
      if (!found.emplace(tensor.name, &tensor).second) {
        faults.push_back(cat(tensor.name, " is in more than one file"));
      }
    }
  }
  for (const auto& [tensor, file] : files.file_of) {
    const auto at = std::find(files.names.begin(), files.names.end(), file);
    if (opened[static_cast<size_t>(at - files.names.begin())]->find(tensor) == nullptr) {
      faults.push_back(cat(tensor, " is not in ", file, " as the index says"));
    }
  }
  if (!faults.empty()) throw_faults(cat("the weights in ", folder, " are broken:"), faults);
  return found;
}

std::string fault_of(const WeightSpec& spec, const TensorsByName& found) {
  const auto at = found.find(spec.name);
  if (at == found.end()) return cat(spec.name, " ", shape_text(spec.shape), " is missing");
  const StoredTensor& tensor = *at->second;
  if (tensor.shape != spec.shape) {
    return cat(spec.name, " has shape ", shape_text(tensor.shape), ", config.json demands ",
               shape_text(spec.shape));
  }
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBf16 && tensor.dtype != DType::kF16) {
    return cat(spec.name, " is ", dtype_name(tensor.dtype), ", weights must be F32, BF16 or F16");
  }
  return "";
}

bool same_samples(const StoredTensor& a, const StoredTensor& b) {
  if (a.dtype != b.dtype || a.num_bytes != b.num_bytes) return false;
  const uint64_t step = std::max<uint64_t>(kSampleBytes, a.num_bytes / 64);
  char left[kSampleBytes], right[kSampleBytes];
  for (uint64_t at = 0; at < a.num_bytes; at += step) {
    const uint64_t size = std::min(kSampleBytes, a.num_bytes - at);
    a.read(at, left, size);
    b.read(at, right, size);
    if (std::memcmp(left, right, size) != 0) return false;
  }
  return true;
}

/// A tied model may store its head again; old files store rotary frequencies.
bool harmless_surplus(const std::string& name, const ModelConfig& config,
                      const TensorsByName& found) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  const WeightNames& names = family_of(config).names;
  if (!config.tied_embeddings || name != names.head) return false;
  return same_samples(*found.at(name), *found.at(std::string(names.embedding)));
}

void warn_surplus(const std::string& folder, const ModelConfig& config, const TensorsByName& found,
                  const std::vector<WeightSpec>& specs, std::vector<std::string>* warnings) {
  if (warnings == nullptr) return;
  std::set<std::string> wanted;
  for (const WeightSpec& spec : specs) wanted.insert(spec.name);
  std::vector<std::string> surplus;
  for (const auto& [name, unused] : found) {
    if (!wanted.contains(name) && !harmless_surplus(name, config, found)) surplus.push_back(name);
  }
  if (surplus.empty()) return;
  const size_t count = surplus.size();
  if (count > 3) surplus.resize(3);
  warnings->push_back(cat(folder, ": ", count, " tensor", count == 1 ? " is" : "s are",
                          " not used by ", config.architecture, ": ", join(surplus, ", "),
                          count > 3 ? ", ..." : ""));
}

/// Where a tensor is sampled: both ends and the middle.
std::array<uint64_t, 3> sample_places(const StoredTensor& tensor) {
  const uint64_t free = tensor.num_bytes - std::min(kSampleBytes, tensor.num_bytes);
  return {0, free / 2, free};
}

/// Names, shapes, dtypes and samples of each tensor, in name order: the same for a single file and
/// for shards.
std::string fingerprint_of(const TensorsByName& found) {
  // All at once: one after the other each sample would wait for the disk.
  for (const auto& [name, tensor] : found) {
    for (const uint64_t at : sample_places(*tensor)) tensor->read_ahead(at, kSampleBytes);
  }
  StreamHash hash;
  char sample[kSampleBytes];
  for (const auto& [name, tensor] : found) {
    hash.update(cat(name, "|", dtype_name(tensor->dtype), "|", shape_text(tensor->shape), "\n"));
    const uint64_t size = std::min(kSampleBytes, tensor->num_bytes);
    for (const uint64_t at : sample_places(*tensor)) {
      tensor->read(at, sample, size);
      hash.update(sample, size);
    }
  }
  return hash.hex();
}

uint64_t key_of(const WeightId& id) {
  return (static_cast<uint64_t>(id.layer + 1) << 16) | (static_cast<uint64_t>(id.role) << 8) |
         static_cast<uint64_t>(id.projection);
}

}  // namespace

std::vector<WeightSpec> weight_specs(const ModelConfig& config) {
  const WeightNames& names = family_of(config).names;
  std::vector<WeightSpec> specs;
  specs.push_back(
      {{WeightRole::kEmbedding}, std::string(names.embedding), {config.vocab_size, config.hidden}});
  for (int layer = 0; layer < static_cast<int>(config.num_layers); ++layer) {
    const std::string prefix = cat(names.layers, layer, ".");
    specs.push_back(
        {{WeightRole::kAttentionNorm, layer}, cat(prefix, names.attention_norm), {config.hidden}});
    specs.push_back({{WeightRole::kMlpNorm, layer}, cat(prefix, names.mlp_norm), {config.hidden}});
    if (config.qk_norm) {
      specs.push_back({{WeightRole::kQNorm, layer}, cat(prefix, names.q_norm), {config.head_dim}});
      specs.push_back({{WeightRole::kKNorm, layer}, cat(prefix, names.k_norm), {config.head_dim}});
    }
    for (int i = 0; i < kNumProjections; ++i) {
      const auto projection = static_cast<Projection>(i);
      const std::string module = cat(prefix, names.projections[static_cast<size_t>(i)]);
      const int64_t out = config.projection_out(projection);
      specs.push_back({{WeightRole::kProjection, layer, projection},
                       module + ".weight",
                       {out, config.projection_in(projection)}});
      if (!config.projection_has_bias(projection)) continue;
      specs.push_back({{WeightRole::kProjectionBias, layer, projection}, module + ".bias", {out}});
    }
  }
  specs.push_back({{WeightRole::kFinalNorm}, std::string(names.final_norm), {config.hidden}});
  if (!config.tied_embeddings) {
    specs.push_back(
        {{WeightRole::kHead}, std::string(names.head), {config.vocab_size, config.hidden}});
  }
  return specs;
}

ModelWeights ModelWeights::open(const std::string& model_folder, const ModelConfig& config,
                                std::vector<std::string>* warnings) {
  const WeightFiles files = find_files(model_folder);
  ModelWeights weights;
  weights.files_ = open_all(model_folder, files);
  const TensorsByName found = collect(model_folder, files, weights.files_);
  const std::vector<WeightSpec> specs = weight_specs(config);
  std::vector<std::string> faults;
  for (const WeightSpec& spec : specs) {
    if (std::string fault = fault_of(spec, found); !fault.empty())
      faults.push_back(std::move(fault));
  }
  if (!faults.empty()) {
    throw_faults(cat("the weights in ", model_folder, " do not fit its config.json:"), faults);
  }
  for (const WeightSpec& spec : specs) {
    weights.index_.emplace(key_of(spec.id), weights.tensors_.size());
    weights.tensors_.push_back(*found.at(spec.name));
  }
  warn_surplus(model_folder, config, found, specs, warnings);
  weights.fingerprint_ = fingerprint_of(found);
  return weights;
}

const StoredTensor& ModelWeights::get(const WeightId& id) const {
  const auto at = index_.find(key_of(id));
  if (at == index_.end()) {
    throw Error(Reason::kInternal, cat("weight role ", static_cast<int>(id.role), " of layer ",
                                       id.layer, " is not part of this model"));
  }
  read_ahead_of(at->second);
  return tensors_[at->second];
}

void ModelWeights::read_ahead_of(size_t index) const {
  uint64_t bytes = 0;
  size_t next = index;
  for (; next < tensors_.size() && bytes < kReadAheadBytes; ++next) {
    if (next >= ahead_->load(std::memory_order_relaxed)) {
      tensors_[next].read_ahead(0, kReadAheadBytes);
    }
    bytes += tensors_[next].num_bytes;
  }
  if (next > ahead_->load(std::memory_order_relaxed)) {
    ahead_->store(next, std::memory_order_relaxed);
  }
}

}  // namespace galley::model
