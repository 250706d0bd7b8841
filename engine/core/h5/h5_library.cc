// The only code that calls HDF5: a shared library that engine/core/h5.cc opens at first use.
#include <hdf5.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/h5/h5_calls.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

static_assert(sizeof(hid_t) == sizeof(int64_t), "the header keeps HDF5's ids as int64_t");

/// Before the first call: no output of the library's own, and no second try to flush a file at exit
/// whose disk was full.
void prepare_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    H5dont_atexit();
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  });
}

herr_t append_entry(unsigned, const H5E_error2_t* entry, void* text) {
  auto* out = static_cast<std::string*>(text);
  if (entry->desc != nullptr) *out += cat(out->empty() ? "" : "; ", entry->desc);
  return 0;
}

std::string take_error_stack() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, append_entry, &text);
  H5Eclear2(H5E_DEFAULT);
  return text;
}

/// The library writes "errno = 28, error message = ..." into its stack; 0 when there is none.
int errno_in(const std::string& text) {
  constexpr std::string_view kMark = "errno = ";
  const size_t at = text.find(kMark);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + kMark.size());
}

/// One line for people: the system's own reason where there is one, else the beginning of the stack
/// (the library writes its whole chain of callers, twice, with buffers' addresses).
std::string reason_in(std::string stack) {
  if (const int error = errno_in(stack); error != 0) return std::strerror(error);
  if (stack.empty()) return "no reason given";
  constexpr size_t kMaxChars = 300;
  std::replace(stack.begin(), stack.end(), '\n', ' ');
  return stack.size() > kMaxChars ? stack.substr(0, kMaxChars) + "..." : stack;
}

[[noreturn]] void fail(const std::string& path, const std::string& call, Reason otherwise) {
  const std::string stack = take_error_stack();
  std::string hint;
  if (stack.find("lock the file") != std::string::npos ||
      stack.find("file locking") != std::string::npos) {
    hint = "; HDF5_USE_FILE_LOCKING asks for locks that this file system does not have: unset it";
  }
  throw Error(reason_from_errno(errno_in(stack), otherwise),
              cat(path, ": HDF5 ", call, " failed: ", reason_in(stack), hint));
}

/// A library id that closes itself.
class Handle {
 public:
  using Closer = herr_t (*)(hid_t);
  Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  ~Handle() {
    if (id_ >= 0) closer_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  hid_t get() const { return id_; }

 private:
  hid_t id_;
  Closer closer_;
};

/// One checked call: its text is in the error.
hid_t checked(hid_t result, const std::string& path, const char* call,
              Reason otherwise = Reason::kIo) {
  if (result < 0) fail(path, call, otherwise);
  return result;
}
#define GALLEY_H5(call) checked(call, path, #call)
#define GALLEY_H5_READ(call) checked(call, path, #call, Reason::kBadCheckpoint)

hid_t access_without_locks(const std::string& path) {
  const hid_t access = GALLEY_H5(H5Pcreate(H5P_FILE_ACCESS));
  GALLEY_H5(H5Pset_file_locking(access, 0, 1));
  GALLEY_H5(H5Pset_fclose_degree(access, H5F_CLOSE_STRONG));
  return access;
}

std::vector<int64_t> shape_of(const std::string& path, hid_t space) {
  const auto rank = static_cast<int>(GALLEY_H5_READ(H5Sget_simple_extent_ndims(space)));
  std::vector<hsize_t> sizes(static_cast<size_t>(rank));
  GALLEY_H5_READ(H5Sget_simple_extent_dims(space, sizes.data(), nullptr));
  return {sizes.begin(), sizes.end()};
}

herr_t append_name(hid_t, const char* name, const H5L_info_t*, void* names) {
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

class Hdf5 final : public H5Calls {
 public:
  int interface_version() const override { return kH5Interface; }

  int64_t create(const std::string& path, uint64_t user_block_bytes) const override {
    prepare_library();
    const Handle access(access_without_locks(path), H5Pclose);
    const Handle creation(GALLEY_H5(H5Pcreate(H5P_FILE_CREATE)), H5Pclose);
    GALLEY_H5(H5Pset_userblock(creation.get(), user_block_bytes));
    return checked(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get()), path,
                   "H5Fcreate", Reason::kCannotCreate);
  }

  int64_t open(const std::string& path) const override {
    prepare_library();
    const Handle access(access_without_locks(path), H5Pclose);
    const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
    // A file that its writer removed meanwhile is missing, whatever call noticed it.
    if (id < 0)
      fail(path, "H5Fopen", path_exists(path) ? Reason::kBadCheckpoint : Reason::kMissingPath);
    return id;
  }

  void close(H5Id file) const override {
    const std::string& path = file.path;
    GALLEY_H5(H5Fclose(file.id));
  }

  void abandon(int64_t id) const noexcept override { H5Fclose(id); }

  void create_group(H5Id file, const std::string& name) const override {
    const std::string& path = file.path;
    const Handle group(
        GALLEY_H5(H5Gcreate2(file.id, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
        H5Gclose);
  }

  void write_f32(H5Id file, const std::string& name, std::span<const float> values,
                 const std::vector<int64_t>& shape) const override {
    const std::string& path = file.path;
    const std::vector<hsize_t> sizes(shape.begin(), shape.end());
    const Handle space(
        GALLEY_H5(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr)),
        H5Sclose);
    GALLEY_CHECK(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())) == values.size());
    const Handle set(GALLEY_H5(H5Dcreate2(file.id, name.c_str(), H5T_IEEE_F32LE, space.get(),
                                          H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
                     H5Dclose);
    GALLEY_H5(H5Dwrite(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  }

  void write_text(H5Id file, const std::string& name, const std::string& text) const override {
    const std::string& path = file.path;
    const Handle type(GALLEY_H5(H5Tcopy(H5T_C_S1)), H5Tclose);
    GALLEY_H5(H5Tset_size(type.get(), text.size() + 1));
    GALLEY_H5(H5Tset_cset(type.get(), H5T_CSET_UTF8));
    const Handle space(GALLEY_H5(H5Screate(H5S_SCALAR)), H5Sclose);
    const Handle set(GALLEY_H5(H5Dcreate2(file.id, name.c_str(), type.get(), space.get(),
                                          H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
                     H5Dclose);
    GALLEY_H5(H5Dwrite(set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()));
  }

  std::vector<int64_t> shape(H5Id file, const std::string& name) const override {
    const std::string& path = file.path;
    const Handle set(GALLEY_H5_READ(H5Dopen2(file.id, name.c_str(), H5P_DEFAULT)), H5Dclose);
    const Handle space(GALLEY_H5_READ(H5Dget_space(set.get())), H5Sclose);
    return shape_of(path, space.get());
  }

  void read_f32(H5Id file, const std::string& name, std::span<float> values) const override {
    const std::string& path = file.path;
    const Handle set(GALLEY_H5_READ(H5Dopen2(file.id, name.c_str(), H5P_DEFAULT)), H5Dclose);
    const Handle space(GALLEY_H5_READ(H5Dget_space(set.get())), H5Sclose);
    const Handle type(GALLEY_H5_READ(H5Dget_type(set.get())), H5Tclose);
    if (H5Tequal(type.get(), H5T_IEEE_F32LE) <= 0 ||
        static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())) != values.size()) {
      throw Error(Reason::kBadCheckpoint,
                  cat(path, ": ", name, " does not hold ", values.size(), " f32 values"));
    }
    GALLEY_H5_READ(
        H5Dread(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  }

  std::string read_text(H5Id file, const std::string& name) const override {
    const std::string& path = file.path;
    const Handle set(GALLEY_H5_READ(H5Dopen2(file.id, name.c_str(), H5P_DEFAULT)), H5Dclose);
    const Handle type(GALLEY_H5_READ(H5Dget_type(set.get())), H5Tclose);
    if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0) {
      throw Error(Reason::kBadCheckpoint, cat(path, ": ", name, " is no text of fixed size"));
    }
    std::string text(H5Tget_size(type.get()), '\0');
    GALLEY_H5_READ(H5Dread(set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()));
    return text.substr(0, text.find('\0'));
  }

  std::vector<std::string> list(H5Id file, const std::string& group) const override {
    const std::string& path = file.path;
    std::vector<std::string> names;
    GALLEY_H5_READ(H5Literate_by_name(file.id, group.c_str(), H5_INDEX_NAME, H5_ITER_NATIVE,
                                      nullptr, append_name, &names, H5P_DEFAULT));
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string library_version() const override {
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    return cat(major, ".", minor, ".", release);
  }
};

}  // namespace
}  // namespace galley

__attribute__((visibility("default"))) const galley::H5Calls* galley_h5_calls() {
  static const galley::Hdf5 calls;
  return &calls;
}
