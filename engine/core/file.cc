#include "engine/core/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/core/strings.h"

namespace galley {
namespace {

constexpr std::string_view kTemporaryMark = ".galley-tmp-";

FileDescriptor open_for_read(const std::string& path) {
  // Without O_NONBLOCK a named pipe that nobody writes to would hold us here for ever.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) throw_errno("open", path, errno);
  return fd;
}

struct stat status_of(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_errno("look at", path, errno);
  if (S_ISDIR(status.st_mode)) {
    throw Error(Reason::kMissingPath, path + " is a directory, a file is needed here");
  }
  return status;
}

/// An absent parent is no missing input: what is asked for cannot be created.
Reason creation_reason(int error) {
  const Reason reason = reason_from_errno(error, Reason::kCannotCreate);
  return reason == Reason::kMissingPath ? Reason::kCannotCreate : reason;
}

void require_regular(const struct stat& status, const std::string& path) {
  if (S_ISREG(status.st_mode)) return;
  throw Error(Reason::kMissingPath,
              path + " is a pipe, socket or device, a file is needed here; copy it into a file");
}

/// What a shell hands over with <(...), or standard input: pipes that somebody does write to.
bool is_handed_over(const std::string& path) {
  return path.starts_with("/dev/fd/") || path.starts_with("/proc/") || path == "/dev/stdin";
}

}  // namespace

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

std::string read_file(const std::string& path, uint64_t max_bytes) {
  const FileDescriptor fd = open_for_read(path);
  const struct stat status = status_of(fd.get(), path);
  if (!is_handed_over(path)) require_regular(status, path);
  ::fcntl(fd.get(), F_SETFL, O_RDONLY);  // reads wait again
  if (static_cast<uint64_t>(status.st_size) > max_bytes) {
    throw Error(Reason::kIo, cat(path, " has ", status.st_size, " bytes, more than the limit of ",
                                 max_bytes, " for such a file"));
  }
  std::string text;
  text.reserve(static_cast<size_t>(status.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("read", path, errno);
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > max_bytes) {
      throw Error(Reason::kIo, cat(path, " is larger than the limit of ", max_bytes, " bytes"));
    }
  }
}

bool path_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

uint64_t file_bytes(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_errno("look at", path, errno);
  return static_cast<uint64_t>(status.st_size);
}

void make_directories(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (!part.empty() && ::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      throw Error(creation_reason(error),
                  cat("cannot create directory ", part, ": ", std::string(strerror(error))));
    }
    if (end == std::string::npos) break;
  }
  if (!is_directory(path)) {
    throw Error(Reason::kCannotCreate,
                "cannot create directory " + path + ": a file of that name is in the way");
  }
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_errno("rename " + from + " to", to, errno);
}

void remove_file_if_exists(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_errno("remove", path, errno);
}

void sync_directory(const std::string& path) {
  const FileDescriptor fd(
      ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) throw_errno("open directory", path, errno);
  // Some network file systems refuse fsync on directories; the rename itself has happened.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    throw_errno("flush directory", path, errno);
  }
}

std::string path_join(const std::string& directory, const std::string& name) {
  if (directory.empty() || (!name.empty() && name[0] == '/')) return name;
  return directory.back() == '/' ? directory + name : directory + "/" + name;
}

std::string path_directory(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string path_name(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

MappedFile::MappedFile(const std::string& path) : path_(path), fd_(open_for_read(path)) {
  const struct stat status = status_of(fd_.get(), path);
  require_regular(status, path);
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_.get(), 0);
  if (address == MAP_FAILED) throw_errno("map", path, errno);
  bytes_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (bytes_ != nullptr) ::munmap(const_cast<std::byte*>(bytes_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::move(other.fd_)),
      bytes_(std::exchange(other.bytes_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::read(uint64_t offset, void* to, size_t size) const {
  auto* at = static_cast<char*>(to);
  for (size_t done = 0; done < size;) {
    const ssize_t got =
        ::pread(fd_.get(), at + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("read", path_, errno);
    if (got == 0) {
      throw Error(Reason::kIo, cat(path_, " had ", size_,
                                   " bytes when it was opened and ends now "
                                   "before byte ",
                                   offset + size, "; it must not change while it is used"));
    }
    done += static_cast<size_t>(got);
  }
}

void MappedFile::read_ahead(uint64_t offset, size_t size) const noexcept {
  ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(size),
                  POSIX_FADV_WILLNEED);
}

std::string temporary_beside(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  return cat(path, kTemporaryMark, ::getpid(), "-", counter.fetch_add(1));
}

void sweep_temporaries(const std::string& directory) {
  DIR* handle = ::opendir(directory.c_str());
  if (handle == nullptr) return;
  while (const dirent* entry = ::readdir(handle)) {
    const std::string name = entry->d_name;
    const size_t mark = name.find(kTemporaryMark);
    if (mark == std::string::npos) continue;
    const std::string rest = name.substr(mark + kTemporaryMark.size());
    const auto pid = parse_int(rest.substr(0, rest.find('-')));
    const bool alive = pid && ::kill(static_cast<pid_t>(*pid), 0) == 0;
    std::error_code ignored;
    if (!alive) std::filesystem::remove_all(path_join(directory, name), ignored);
  }
  ::closedir(handle);
}

AtomicFile::AtomicFile(std::string path, unsigned mode)
    : path_(std::move(path)), temporary_(temporary_beside(path_)) {
  // The rename would put a file in the place of /dev/null or of somebody's pipe.
  struct stat there {};
  if (::stat(path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    throw Error(Reason::kCannotCreate, cat("cannot create ", path_, ": a ",
                                           S_ISDIR(there.st_mode) ? "directory" : "device or pipe",
                                           " of that name is in the way"));
  }
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd_ < 0) {
    throw Error(creation_reason(errno),
                cat("cannot create ", path_, ": ", std::string(strerror(errno))));
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* bytes, size_t size) {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t put = ::write(fd_, at, size);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_errno("write", path_, errno);
    at += put;
    size -= static_cast<size_t>(put);
  }
}

void AtomicFile::commit(const std::function<void(const std::string&)>& verify) {
  if (::fsync(fd_) != 0) throw_errno("flush", path_, errno);
  if (::close(std::exchange(fd_, -1)) != 0) throw_errno("close", path_, errno);
  if (verify) verify(temporary_);
  rename_path(temporary_, path_);
  temporary_.clear();
  sync_directory(path_directory(path_));
}

void replace_small_file(const std::string& path, std::string_view text, unsigned mode) {
  const std::string temporary = temporary_beside(path);
  FileDescriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file.valid()) throw_errno("create", temporary, errno, Reason::kCannotCreate);
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  if (written != static_cast<ssize_t>(text.size()) ||
      rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = written == static_cast<ssize_t>(text.size()) ? errno : error;
    unlink(temporary.c_str());
    throw_errno("write", path, reason);
  }
}

void write_file_atomically(const std::string& path, std::string_view text, unsigned mode) {
  AtomicFile file(path, mode);
  file.write(text);
  file.commit();
}

}  // namespace galley
