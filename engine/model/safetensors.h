// safetensors files: a strict reader over memory maps, and a writer.
//
// Format: 8-byte little-endian header length, JSON header, data. The reader checks the header size,
// every dtype, shape x dtype = bytes, no holes, no overlaps, nothing behind the data; names a Git
// LFS pointer file or a truncated file as what it is. Values; views live as long as the file
// object.
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
  int64_t num_elements() const;
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
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  MappedFile file_;
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
