#include "engine/core/h5.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/core/h5/h5_calls.h"
#include "engine/core/shared_library.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

const H5Calls& open_calls() {
  const SharedLibrary library = SharedLibrary::open("libgalley_h5.so", LibrarySymbols::kLocal);
  const H5Calls* calls = library.function<const H5Calls* (*)()>("galley_h5_calls")();
  if (calls->interface_version() != kH5Interface) {
    throw Error(Reason::kInternal, cat(library.path(), " belongs to another version of galley"));
  }
  return *calls;
}

/// Opened once, at the first checkpoint that this process reads or writes.
const H5Calls& calls() {
  static const H5Calls& opened = open_calls();
  return opened;
}

}  // namespace

H5File H5File::create(const std::string& path, uint64_t user_block_bytes) {
  return H5File(path, calls().create(path, user_block_bytes));
}

H5File H5File::open(const std::string& path) { return H5File(path, calls().open(path)); }

H5File::~H5File() {
  if (id_ >= 0) calls().abandon(id_);
}

H5File::H5File(H5File&& other) noexcept
    : path_(std::move(other.path_)), id_(std::exchange(other.id_, -1)) {}

void H5File::close() { calls().close({path_, std::exchange(id_, -1)}); }

void H5File::create_group(const std::string& name) { calls().create_group({path_, id_}, name); }

void H5File::write_f32(const std::string& name, std::span<const float> values,
                       const std::vector<int64_t>& shape) {
  calls().write_f32({path_, id_}, name, values, shape);
}

void H5File::write_text(const std::string& name, const std::string& text) {
  calls().write_text({path_, id_}, name, text);
}

std::vector<int64_t> H5File::shape(const std::string& name) const {
  return calls().shape({path_, id_}, name);
}

void H5File::read_f32(const std::string& name, std::span<float> values) const {
  calls().read_f32({path_, id_}, name, values);
}

std::string H5File::read_text(const std::string& name) const {
  return calls().read_text({path_, id_}, name);
}

std::vector<std::string> H5File::list(const std::string& group) const {
  return calls().list({path_, id_}, group);
}

std::string H5File::library_version() { return calls().library_version(); }

}  // namespace galley
