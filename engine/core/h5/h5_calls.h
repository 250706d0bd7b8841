// What the shared library libgalley_h5.so offers to engine/core/h5.cc: the methods of H5File, with
// the file's path (for errors) and its id given. engine/core/h5.h says what each does and throws.
//
// One stateless object, owned by the library; one thread of a process at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace galley {

/// Changes whenever the class below changes.
inline constexpr int kH5Interface = 1;

struct H5Id {
  const std::string& path;
  int64_t id;
};

class H5Calls {
 public:
  virtual int interface_version() const = 0;
  virtual std::string library_version() const = 0;
  virtual int64_t create(const std::string& path, uint64_t user_block_bytes) const = 0;
  virtual int64_t open(const std::string& path) const = 0;
  virtual void close(H5Id file) const = 0;
  /// For destructors: reports nothing.
  virtual void abandon(int64_t id) const noexcept = 0;
  virtual void create_group(H5Id file, const std::string& name) const = 0;
  virtual void write_f32(H5Id file, const std::string& name, std::span<const float> values,
                         const std::vector<int64_t>& shape) const = 0;
  virtual void write_text(H5Id file, const std::string& name, const std::string& text) const = 0;
  virtual std::vector<int64_t> shape(H5Id file, const std::string& name) const = 0;
  virtual void read_f32(H5Id file, const std::string& name, std::span<float> values) const = 0;
  virtual std::string read_text(H5Id file, const std::string& name) const = 0;
  virtual std::vector<std::string> list(H5Id file, const std::string& group) const = 0;

 protected:
  ~H5Calls() = default;
};

}  // namespace galley

/// The library's one function.
extern "C" const galley::H5Calls* galley_h5_calls();
