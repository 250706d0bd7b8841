#include "engine/model/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/json.h"
#include "engine/core/strings.h"

namespace galley::model {
namespace {

// The format's own limit of the header.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kCheckBytes = uint64_t{1} << 20;
constexpr std::string_view kLfsMark = "version https://git-lfs.github.com/spec";
static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  throw Error(Reason::kBadModel, cat(path, ": ", what));
}

void check_is_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_errno("open", path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(Reason::kMissingPath, cat(path, " is not a file"));
  }
}

std::string header_text(const std::string& path, const MappedFile& file) {
  std::string start(std::min(file.size(), kLfsMark.size()), ' ');
  file.read(0, start.data(), start.size());
  if (start == kLfsMark) {
    bad(path, "this is a Git LFS pointer, not the weights; run `git lfs pull` in its folder");
  }
  if (file.size() < 8) {
    bad(path, cat("only ", file.size(), " bytes: too short for a safetensors file (truncated?)"));
  }
  uint64_t bytes = 0;
  std::memcpy(&bytes, start.data(), sizeof bytes);
  if (bytes > kMaxHeaderBytes) {
    bad(path, cat("header of ", bytes, " bytes is beyond the format's limit of ", kMaxHeaderBytes,
                  "; this is no safetensors file"));
  }
  if (bytes > file.size() - 8) {
    bad(path, cat("truncated: the header has ", bytes, " bytes, the file ends ",
                  bytes - (file.size() - 8), " bytes before its end"));
  }
  std::string header(bytes, ' ');
  file.read(8, header.data(), header.size());
  if (!header.starts_with('{')) bad(path, "the header does not begin with '{'");
  return header;
}

/// Non-negative integer of a list, or false.
bool read_natural(const Json& value, uint64_t* out) {
  if (!value.is_int() || value.as_int() < 0) return false;
  *out = static_cast<uint64_t>(value.as_int());
  return true;
}

void read_metadata(const std::string& path, const Json& value,
                   std::map<std::string, std::string>* metadata) {
  if (!value.is_object()) bad(path, "__metadata__ must be an object of strings");
  for (const auto& [key, text] : value.as_object()) {
    if (!text.is_string()) bad(path, cat("__metadata__ \"", key, "\" must be a string"));
    metadata->emplace(key, text.as_string());
  }
}

struct Extent {
  uint64_t begin = 0, end = 0;
};

StoredTensor read_tensor(const std::string& path, const std::string& name, const Json& entry,
                         Extent* extent) {
  const auto fail = [&](const std::string& what) { bad(path, cat("tensor ", name, ": ", what)); };
  if (!entry.is_object()) fail("its entry must be an object");
  for (const auto& [key, unused] : entry.as_object()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      fail(cat("unknown key \"", key, "\""));
    }
  }
  const Json* dtype = entry.find("dtype");
  const Json* shape = entry.find("shape");
  const Json* offsets = entry.find("data_offsets");
  if (dtype == nullptr || !dtype->is_string()) fail("\"dtype\" is missing or no string");
  if (shape == nullptr || !shape->is_array()) fail("\"shape\" is missing or no list");
  if (offsets == nullptr || !offsets->is_array() || offsets->as_array().size() != 2) {
    fail("\"data_offsets\" is missing or no list of two");
  }
  StoredTensor tensor;
  tensor.name = name;
  const auto known = dtype_from_name(dtype->as_string());
  if (!known) fail(cat("dtype ", dtype->as_string(), " is not known to this version"));
  tensor.dtype = *known;
  uint64_t bytes = dtype_bytes(tensor.dtype);
  for (const Json& size : shape->as_array()) {
    uint64_t value = 0;
    if (!read_natural(size, &value)) fail("a size of its shape is negative or no integer");
    if (__builtin_mul_overflow(bytes, value, &bytes) || bytes > uint64_t{1} << 62) {
      fail("its shape is too large");
    }
    tensor.shape.push_back(static_cast<int64_t>(value));
  }
  if (!read_natural(offsets->as_array()[0], &extent->begin) ||
      !read_natural(offsets->as_array()[1], &extent->end) || extent->begin > extent->end) {
    fail("\"data_offsets\" must be two integers, the second not below the first");
  }
  if (extent->end - extent->begin != bytes) {
    fail(cat("shape and dtype need ", bytes, " bytes, its offsets span ",
             extent->end - extent->begin));
  }
  tensor.num_bytes = bytes;
  return tensor;
}

/// Data must be covered once, from 0 to the end of the file.
void check_layout(const std::string& path, const std::vector<StoredTensor>& tensors,
                  const std::vector<Extent>& extents, const std::vector<size_t>& order,
                  uint64_t data_bytes) {
  uint64_t largest = 0;
  for (const Extent& extent : extents) largest = std::max(largest, extent.end);
  if (largest > data_bytes) {
    bad(path, cat("truncated: the tensors need ", largest, " bytes of data, ", data_bytes,
                  " are there (", largest - data_bytes, " missing)"));
  }
  uint64_t at = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Extent& extent = extents[order[i]];
    const std::string& name = tensors[order[i]].name;
    if (extent.begin < at) {
      bad(path,
          cat("tensor ", name, " overlaps the one before it by ", at - extent.begin, " bytes"));
    }
    if (extent.begin > at) {
      bad(path, cat("hole of ", extent.begin - at, " bytes before tensor ", name));
    }
    at = extent.end;
  }
  if (at != data_bytes) bad(path, cat(data_bytes - at, " surplus bytes behind the last tensor"));
}

}  // namespace

int64_t StoredTensor::num_elements() const {
  return static_cast<int64_t>(num_bytes / dtype_bytes(dtype));
}

void StoredTensor::read(uint64_t begin, void* to, uint64_t size) const {
  GALLEY_CHECK(begin <= num_bytes && size <= num_bytes - begin);
  if (size == 0) return;
  if (file != nullptr) {
    file->read(file_offset + begin, to, size);
  } else {
    std::memcpy(to, bytes + begin, size);
  }
}

void StoredTensor::read_ahead(uint64_t begin, uint64_t size) const noexcept {
  if (file == nullptr || begin >= num_bytes) return;
  file->read_ahead(file_offset + begin, std::min(size, num_bytes - begin));
}

std::vector<float> StoredTensor::to_f32() const {
  std::vector<float> values(static_cast<size_t>(num_elements()));
  const auto convert = [&]<typename T>(T, auto&& function) {
    std::vector<T> stored(values.size());
    read(0, stored.data(), num_bytes);
    std::transform(stored.begin(), stored.end(), values.begin(), function);
  };
  const auto cast = [](auto value) { return static_cast<float>(value); };
  switch (dtype) {
    case DType::kF32:
      read(0, values.data(), num_bytes);
      break;
    case DType::kBf16:
      convert(uint16_t{}, bf16_to_f32);
      break;
    case DType::kF16:
      convert(uint16_t{}, f16_to_f32);
      break;
    case DType::kF64:
      convert(double{}, cast);
      break;
    case DType::kI32:
      convert(int32_t{}, cast);
      break;
    case DType::kI64:
      convert(int64_t{}, cast);
      break;
    case DType::kU8:
      convert(uint8_t{}, cast);
      break;
    case DType::kI8:
      convert(int8_t{}, cast);
      break;
  }
  return values;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  check_is_file(path);
  SafetensorsFile result(path);
  const std::string header = header_text(path, *result.file_);
  const Json json =
      parse_json_or_throw(header, path + " (header)", Reason::kBadModel, {.max_depth = 8});
  if (!json.is_object()) bad(path, "the header must be an object");
  std::vector<StoredTensor> tensors;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : json.as_object()) {
    if (name == "__metadata__") {
      read_metadata(path, entry, &result.metadata_);
    } else {
      tensors.push_back(read_tensor(path, name, entry, &extents.emplace_back()));
    }
  }
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(extents[a].begin, extents[a].end) <
           std::pair(extents[b].begin, extents[b].end);
  });
  const uint64_t data_begin = 8 + header.size();
  check_layout(path, tensors, extents, order, result.file_->size() - data_begin);
  for (const size_t i : order) {
    tensors[i].file = result.file_.get();
    tensors[i].file_offset = data_begin + extents[i].begin;
    tensors[i].bytes = result.file_->bytes() + tensors[i].file_offset;
    result.index_.emplace(tensors[i].name, result.tensors_.size());
    result.tensors_.push_back(std::move(tensors[i]));
  }
  return result;
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &tensors_[at->second];
}

namespace {

std::string make_header(const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata,
                        std::vector<uint64_t>* sizes) {
  Json header = Json::object();
  if (!metadata.empty()) {
    Json entries = Json::object();
    for (const auto& [key, value] : metadata) entries.set(key, value);
    header.set("__metadata__", std::move(entries));
  }
  uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    Json shape = Json::array();
    uint64_t bytes = dtype_bytes(tensor.dtype);
    for (const int64_t size : tensor.shape) {
      shape.push(size);
      bytes *= static_cast<uint64_t>(size);
    }
    Json entry = Json::object();
    entry.set("dtype", dtype_name(tensor.dtype));
    entry.set("shape", std::move(shape));
    entry.set("data_offsets", Json(Json::Array{Json(at), Json(at + bytes)}));
    GALLEY_CHECK(!header.contains(tensor.name));
    header.set(tensor.name, std::move(entry));
    sizes->push_back(bytes);
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

/// In pieces beside the map, so that the check does not take the file's size of memory.
bool same_bytes(const StoredTensor& stored, const void* written) {
  std::vector<std::byte> piece(std::min(stored.num_bytes, kCheckBytes));
  const auto* bytes = static_cast<const std::byte*>(written);
  for (uint64_t begin = 0; begin < stored.num_bytes; begin += kCheckBytes) {
    const uint64_t size = std::min(kCheckBytes, stored.num_bytes - begin);
    stored.read(begin, piece.data(), size);
    if (std::memcmp(piece.data(), bytes + begin, size) != 0) return false;
  }
  return true;
}

void check_written(const std::string& temporary, const std::vector<TensorToWrite>& tensors,
                   const std::vector<uint64_t>& sizes) {
  const SafetensorsFile file = SafetensorsFile::open(temporary);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor* tensor = file.find(tensors[i].name);
    const bool same = tensor != nullptr && tensor->dtype == tensors[i].dtype &&
                      tensor->shape == tensors[i].shape && tensor->num_bytes == sizes[i] &&
                      same_bytes(*tensor, tensors[i].bytes);
    if (!same) {
      throw Error(Reason::kIo, cat(temporary, ": tensor ", tensors[i].name,
                                   " was read back different from what was written"));
    }
  }
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<uint64_t> sizes;
  const std::string header = make_header(tensors, metadata, &sizes);
  AtomicFile file(path);
  const uint64_t header_bytes = header.size();
  file.write(&header_bytes, sizeof header_bytes);
  file.write(header);
  for (size_t i = 0; i < tensors.size(); ++i) file.write(tensors[i].bytes, sizes[i]);
  file.commit([&](const std::string& temporary) { check_written(temporary, tensors, sizes); });
}

}  // namespace galley::model
