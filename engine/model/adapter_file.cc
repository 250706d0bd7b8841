#include "engine/model/adapter_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/strings.h"
#include "engine/model/adapter_config.h"
#include "engine/model/family.h"
#include "engine/model/safetensors.h"

namespace galley::model {
namespace {

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kTensorsName = "adapter_model.safetensors";
constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

std::string listed(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > 3) names.resize(3);
  return join(names, ", ") + (count > 3 ? cat(" and ", count - 3, " more") : "");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

void check_folder(const std::string& folder) {
  if (!is_directory(folder)) {
    if (folder.ends_with(".h5") && path_exists(folder)) {
      throw Error(Reason::kMissingPath,
                  cat(folder,
                      " is a checkpoint, not an adapter folder: write its adapter with "
                      "`galley export ",
                      folder, " DIR` first and give DIR"));
    }
    if (path_exists(folder)) {
      throw Error(Reason::kMissingPath, cat(folder, " is a file; an adapter is a folder with ",
                                            kConfigName, " and ", kTensorsName, " in it"));
    }
    throw Error(Reason::kMissingPath, cat("adapter folder ", folder, " does not exist"));
  }
  if (!path_exists(path_join(folder, kConfigName))) {
    throw Error(Reason::kMissingPath, cat(folder, " holds no ", kConfigName, ": no PEFT adapter"));
  }
  if (path_exists(path_join(folder, kTensorsName))) return;
  if (path_exists(path_join(folder, "adapter_model.bin"))) {
    throw Error(Reason::kUnsupported, cat(folder,
                                          " holds a pickle (adapter_model.bin); save the "
                                          "adapter again as safetensors"));
  }
  throw Error(Reason::kMissingPath, cat(folder, " holds no ", kTensorsName));
}

SafetensorsFile open_tensors(const std::string& path) {
  try {
    return SafetensorsFile::open(path);
  } catch (const Error& error) {
    if (error.reason() != Reason::kBadModel) throw;
    throw Error(Reason::kBadCheckpoint, error.what());
  }
}

/// The linears that the settings mean here. What training would refuse as a mistake in a job file
/// is a broken adapter here.
std::vector<AdaptedLinear> linears_of(const std::string& folder, const ModelConfig& config,
                                      const LoraSettings& settings) {
  try {
    return adapted_linears(config, settings);
  } catch (const Error& error) {
    const Reason reason =
        error.reason() == Reason::kBadConfig ? Reason::kBadCheckpoint : error.reason();
    throw Error(reason, cat(folder, ": ", error.what()));
  }
}

/// Whose adapter it is, for one that does not fit: most often it is that of another model.
std::string base_note(const std::string& base) {
  return base.empty() ? "" : cat("; it was made for \"", base, "\" (base_model_name_or_path)");
}

/// Names that the file has too much or too little are one error: such an adapter would silently do
/// less than was trained.
void check_names(const std::string& path, const std::string& base, const SafetensorsFile& file,
                 const std::vector<TrainableTensor>& tensors) {
  std::set<std::string> wanted;
  std::vector<std::string> missing, surplus;
  for (const TrainableTensor& tensor : tensors) {
    wanted.insert(tensor.name);
    if (file.find(tensor.name) == nullptr) missing.push_back(tensor.name);
  }
  for (const StoredTensor& tensor : file.tensors()) {
    if (!wanted.contains(tensor.name)) surplus.push_back(tensor.name);
  }
  if (surplus.empty() && missing.empty()) return;
  std::string text = cat(path, ": does not fit this model", base_note(base), ";");
  if (missing.size() == tensors.size()) text += " nothing in it applies to this model;";
  if (!surplus.empty()) {
    text += cat(" ", surplus.size(), " keys match no adapted linear: ", listed(surplus), ";");
  }
  if (!missing.empty()) {
    text += cat(" ", missing.size(), " keys are missing: ", listed(missing), ";");
  }
  text.pop_back();
  throw Error(Reason::kBadCheckpoint, text);
}

std::vector<float> read_values(const std::string& path, const std::string& base,
                               const SafetensorsFile& file,
                               const std::vector<TrainableTensor>& tensors) {
  std::vector<std::string> wrong;
  for (const TrainableTensor& tensor : tensors) {
    const StoredTensor& stored = *file.find(tensor.name);
    if (stored.shape != tensor.shape) {
      wrong.push_back(cat(tensor.name, " is ", shape_text(stored.shape), ", the settings demand ",
                          shape_text(tensor.shape)));
    } else if (stored.dtype != DType::kF32 && stored.dtype != DType::kBf16 &&
               stored.dtype != DType::kF16 && stored.dtype != DType::kF64) {
      wrong.push_back(cat(tensor.name, " is ", dtype_name(stored.dtype)));
    }
  }
  if (!wrong.empty()) {
    throw Error(Reason::kBadCheckpoint,
                cat(path, ": does not fit this model", base_note(base), "; ", wrong.size(),
                    " tensors do not fit: ", listed(wrong)));
  }
  std::vector<float> values;
  for (const TrainableTensor& tensor : tensors) {
    const std::vector<float> part = file.find(tensor.name)->to_f32();
    if (!std::all_of(part.begin(), part.end(), [](float x) { return std::isfinite(x); })) {
      throw Error(Reason::kBadCheckpoint, cat(path, ": ", tensor.name, " holds NaN or infinity"));
    }
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

/// True when settings with this change alone are refused as a mistake in a job file.
template <typename Change>
bool is_foreign(const ModelConfig& config, const Change& change) {
  LoraSettings one;
  one.rank = 1;
  change(&one);
  try {
    adapted_linears(config, one);
    return false;
  } catch (const Error& error) {
    return error.reason() == Reason::kBadConfig;
  }
}

/// Targets and patterns that match nothing here are dropped: PEFT folders often list the names of
/// several architectures. The tensors decide whether the rest is all that was trained.
void drop_foreign_names(const ModelConfig& config, LoraSettings* settings) {
  std::vector<std::string> targets;
  for (const std::string& target : settings->targets) {
    if (!is_foreign(config, [&](LoraSettings* one) { one->targets = {target}; })) {
      targets.push_back(target);
    }
  }
  if (!targets.empty()) settings->targets = std::move(targets);
  std::erase_if(settings->rank_pattern, [&](const auto& row) {
    return is_foreign(config, [&](LoraSettings* one) { one->rank_pattern = {{row.first, 1}}; });
  });
  std::erase_if(settings->alpha_pattern, [&](const auto& row) {
    return is_foreign(config, [&](LoraSettings* one) { one->alpha_pattern = {{row.first, 1.0}}; });
  });
}

void check_finite(const Adapter& adapter, const std::vector<TrainableTensor>& tensors) {
  for (const TrainableTensor& tensor : tensors) {
    const float* begin = adapter.values.data() + tensor.offset;
    if (!std::all_of(begin, begin + tensor.num_elements(),
                     [](float x) { return std::isfinite(x); })) {
      throw Error(Reason::kNumerics,
                  cat("the adapter is not saved: ", tensor.name, " holds NaN or infinity"));
    }
  }
}

/// Puts the finished folder in place; an older one disappears in the same moment where the file
/// system can exchange two names.
void put_in_place(const std::string& temporary, const std::string& folder) {
  if (!path_exists(folder)) {
    rename_path(temporary, folder);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) ==
             0) {
    std::filesystem::remove_all(temporary);
  } else if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) {
    const std::string old = temporary_beside(folder);
    rename_path(folder, old);
    rename_path(temporary, folder);
    std::filesystem::remove_all(old);
  } else {
    throw_errno("exchange " + temporary + " and", folder, errno);
  }
  sync_directory(path_directory(folder));
}

/// Removes a half-written folder unless it was moved away.
struct FolderGuard {
  std::string path;
  ~FolderGuard() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

Adapter read_adapter(const std::string& folder, const ModelConfig& config) {
  check_folder(folder);
  const std::string config_path = path_join(folder, kConfigName);
  const Json json = parse_json_or_throw(read_file(config_path, kMaxConfigBytes), config_path,
                                        Reason::kBadCheckpoint);
  Adapter adapter;
  adapter.settings = parse_adapter_config(json, config_path, &adapter.base_model);
  drop_foreign_names(config, &adapter.settings);
  adapter.linears = linears_of(folder, config, adapter.settings);
  const std::vector<TrainableTensor> tensors = trainable_tensors(adapter.linears);
  const std::string path = path_join(folder, kTensorsName);
  const SafetensorsFile file = open_tensors(path);
  check_names(path, adapter.base_model, file, tensors);
  adapter.values = read_values(path, adapter.base_model, file, tensors);
  return adapter;
}

void write_adapter(const std::string& folder, const Adapter& adapter) {
  const std::vector<TrainableTensor> tensors = trainable_tensors(adapter.linears);
  GALLEY_CHECK(!tensors.empty());
  GALLEY_CHECK(adapter.values.size() == tensors.back().offset + tensors.back().num_elements());
  check_finite(adapter, tensors);
  const FolderGuard guard{temporary_beside(folder)};
  make_directories(guard.path);
  std::vector<TensorToWrite> parts;
  for (const TrainableTensor& tensor : tensors) {
    parts.push_back(
        {tensor.name, DType::kF32, tensor.shape, adapter.values.data() + tensor.offset});
  }
  write_safetensors(path_join(guard.path, kTensorsName), parts, {{"format", "pt"}});
  const std::string config_path = path_join(guard.path, kConfigName);
  const std::string text = adapter_config_json(adapter.settings, adapter.base_model).dump_pretty();
  write_file_atomically(config_path, text);
  if (read_file(config_path) != text) {
    throw Error(Reason::kIo, config_path + " was read back different from what was written");
  }
  put_in_place(guard.path, folder);
}

}  // namespace galley::model
