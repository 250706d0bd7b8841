// safetensors files: a strict reader over memory maps, and a writer.
//
// Format: 8-byte little-endian header length, JSON header, data. The reader checks the header size,
// every dtype, shape x dtype = bytes, no holes, no overlaps, nothing behind the data; names a Git
// LFS pointer file or a truncated file as what it is. Opening reads the header only. Values; views
// live as long as the file object.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/file.h"

namespace galley::model {

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* bytes = nullptr;  // into the map
  uint64_t num_bytes = 0;
  const MappedFile* file = nullptr;  // null: the bytes lie in memory
  uint64_t file_offset = 0;
  int64_t num_elements() const;
  /// Copies bytes [begin, begin + size). Whole tensors are best read so, in pieces: the map would
  /// grow this process by the file, and end it when the file shrinks; this throws Error(kIo).
  void read(uint64_t begin, void* to, uint64_t size) const;
  /// Lets the system fetch these bytes (cut at the tensor's end) in the background.
  void read_ahead(uint64_t begin, uint64_t size) const noexcept;
  /// Copies to f32 (exact widening of bf16, f16; f64 rounds).
  std::vector<float> to_f32() const;
};

class SafetensorsFile {
 public:
  /// Error(kMissingPath / kBadModel) naming file, tensor and fault.
  static SafetensorsFile open(const std::string& path);
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  explicit SafetensorsFile(const std::string& path) : file_(new MappedFile(path)) {}
  std::unique_ptr<MappedFile> file_;     // tensors point at it
  std::vector<StoredTensor> tensors_;    // in file order
  std::map<std::string, size_t> index_;  // by name
  std::map<std::string, std::string> metadata_;
};

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* bytes = nullptr;
};
/// Writes beside, reads back and compares, renames. Tensors in the given order.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace galley::model
