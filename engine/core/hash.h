// Checksums and fingerprints (XXH3). The only home of the hash library. Not for secrets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace galley {

uint64_t hash64(const void* bytes, size_t size, uint64_t seed = 0);
inline uint64_t hash64(std::string_view text, uint64_t seed = 0) {
  return hash64(text.data(), text.size(), seed);
}
/// 32 hexadecimal digits of the 128-bit hash.
std::string hash128_hex(const void* bytes, size_t size);
inline std::string hash128_hex(std::string_view text) {
  return hash128_hex(text.data(), text.size());
}

/// 128-bit hash of a stream of pieces; equals hash128_hex of them joined.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(const StreamHash&) = delete;
  StreamHash& operator=(const StreamHash&) = delete;
  void update(const void* bytes, size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley
