// Files: whole reads, memory maps, and writes that never leave a half file behind.
//
// Every write goes to a temporary beside the target, is flushed to the disk, and is renamed over
// the target at commit(); an AtomicFile that is destroyed before removes its temporary.
// All functions throw Error with the Reason of the errno and the path in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/core/error.h"

namespace galley {

/// Whole file; `max_bytes` guards against a surprise (throws kIo beyond it). Named pipes, sockets
/// and devices are refused at once (kMissingPath); what a shell hands over with <(...) is read.
std::string read_file(const std::string& path, uint64_t max_bytes = uint64_t{1} << 32);
bool path_exists(const std::string& path);
bool is_directory(const std::string& path);
uint64_t file_bytes(const std::string& path);
/// mkdir -p with mode 0700; kCannotCreate (or kDiskFull, kPermission) on failure.
void make_directories(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
void remove_file_if_exists(const std::string& path);
/// Flushes a directory's entries to the disk.
void sync_directory(const std::string& path);
/// "a/b" + "c" -> "a/b/c"; an absolute `name` is returned as it is.
std::string path_join(const std::string& directory, const std::string& name);
std::string path_directory(const std::string& path);
std::string path_name(const std::string& path);

/// An open file descriptor that closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// Read-only private map of a whole file, which stays open. Movable; unmaps and closes at the end.
/// A file that shrinks or fails under its map kills who touches the lost page; read() throws
/// instead.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const std::byte* bytes() const { return bytes_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_), size_}; }
  /// Copies bytes [offset, offset + size) without the map, so that they take no memory of this
  /// process behind it. Error(kIo) when the file has become shorter, or the errno's.
  void read(uint64_t offset, void* to, size_t size) const;
  /// Lets the system fetch these bytes in the background; a hint.
  void read_ahead(uint64_t offset, size_t size) const noexcept;

 private:
  std::string path_;
  FileDescriptor fd_;
  const std::byte* bytes_ = nullptr;
  size_t size_ = 0;
};

/// A file that appears whole or not at all. Mode 0600 unless given.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path, unsigned mode = 0600);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* bytes, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Flushes, closes, lets `verify` look at the temporary (it throws to refuse), renames.
  void commit(const std::function<void(const std::string& temporary)>& verify = {});

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

/// Writes a small file atomically.
void write_file_atomically(const std::string& path, std::string_view text, unsigned mode = 0600);
/// The same without flushing it to the disk: for what is written every few seconds and is worth
/// nothing after a crash of the machine.
void replace_small_file(const std::string& path, std::string_view text, unsigned mode = 0600);
/// Name of a temporary beside `path`, unique to this process and call.
std::string temporary_beside(const std::string& path);
/// Removes leftovers (files and folders) of dead processes in a directory (names made by
/// temporary_beside).
void sweep_temporaries(const std::string& directory);

}  // namespace galley
