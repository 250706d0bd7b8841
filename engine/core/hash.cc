#include "engine/core/hash.h"

#include <xxhash.h>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley {
namespace {

std::string hex_of(XXH128_hash_t hash) {
  return format("%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
}

}  // namespace

uint64_t hash64(const void* bytes, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, size, seed);
}

std::string hash128_hex(const void* bytes, size_t size) {
  return hex_of(XXH3_128bits(bytes, size));
}

struct StreamHash::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

StreamHash::StreamHash() : state_(std::make_unique<State>()) {
  GALLEY_CHECK(state_->xxh != nullptr);
  XXH3_128bits_reset(state_->xxh);
}
StreamHash::~StreamHash() = default;

void StreamHash::update(const void* bytes, size_t size) {
  XXH3_128bits_update(state_->xxh, bytes, size);
}
std::string StreamHash::hex() const { return hex_of(XXH3_128bits_digest(state_->xxh)); }

}  // namespace galley
