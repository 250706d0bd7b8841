// HDF5 files: handles that close themselves and one checked call each. The library's only home is
// h5/, a shared library of our own that is opened at the first call of this class: a program that
// touches no checkpoint never loads HDF5.
//
// Files are never locked (the property is set in code): a file has one writer, readers come after
// its rename. An Error carries the library's own error stack and the Reason of the errno in it, so
// a full disk is kDiskFull. HDF5 is not thread-safe: one thread of a process at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace galley {

class H5File {
 public:
  /// A new file; the first `user_block_bytes` (0, or a power of two from 512) belong to the caller.
  static H5File create(const std::string& path, uint64_t user_block_bytes);
  /// An existing file, read only. Check a file's checksum before: the library is no safe parser.
  static H5File open(const std::string& path);
  ~H5File();
  H5File(H5File&& other) noexcept;
  H5File& operator=(H5File&& other) = delete;
  H5File(const H5File&) = delete;
  H5File& operator=(const H5File&) = delete;

  void create_group(const std::string& name);
  /// `name` is a path such as "adapter/TENSOR". shape's product is values.size().
  void write_f32(const std::string& name, std::span<const float> values,
                 const std::vector<int64_t>& shape);
  void write_text(const std::string& name, const std::string& text);

  std::vector<int64_t> shape(const std::string& name) const;
  /// Error(kBadCheckpoint) when it is missing, no f32 tensor, or has another number of values.
  void read_f32(const std::string& name, std::span<float> values) const;
  std::string read_text(const std::string& name) const;
  /// Names in a group, sorted.
  std::vector<std::string> list(const std::string& group) const;

  /// Writes everything to the file and closes it; the destructor cannot report a failure.
  void close();

  /// "1.10.8" of the library that is loaded.
  static std::string library_version();

 private:
  H5File(std::string path, int64_t id) : path_(std::move(path)), id_(id) {}
  std::string path_;
  int64_t id_ = -1;
};

}  // namespace galley
