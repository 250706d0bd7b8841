#include "engine/core/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/hash.h"

namespace galley {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  constexpr uint64_t kM0 = 0xD2511F53u, kM1 = 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kM0 * c[0], p1 = kM1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return c;
}

uint64_t random_stream(std::string_view purpose, std::initializer_list<uint64_t> indices) {
  uint64_t stream = hash64(purpose);
  for (const uint64_t index : indices) stream = hash64(&index, sizeof index, stream);
  return stream;
}

uint32_t Random::next_u32() {
  const uint64_t block = position_ / 4;
  if (block != block_index_) {
    block_ = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                         static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    block_index_ = block;
  }
  return block_[position_++ % 4];
}

uint64_t Random::next_u64() {
  const uint64_t low = next_u32();
  return low | (static_cast<uint64_t>(next_u32()) << 32);
}

double Random::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

float Random::uniform_f32() { return static_cast<float>(next_u32() >> 8) * 0x1.0p-24f; }

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log1p(-uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

uint64_t Random::below(uint64_t bound) {
  GALLEY_CHECK(bound > 0);
  const uint64_t limit = ~uint64_t{0} - (~uint64_t{0} % bound + 1) % bound;
  while (true) {
    const uint64_t draw = next_u64();
    if (draw <= limit) return draw % bound;
  }
}

std::vector<uint32_t> random_permutation(uint64_t seed, uint64_t stream, uint32_t count) {
  std::vector<uint32_t> order;
  random_permutation(seed, stream, count, &order);
  return order;
}

void random_permutation(uint64_t seed, uint64_t stream, uint32_t count,
                        std::vector<uint32_t>* order) {
  order->resize(count);
  std::iota(order->begin(), order->end(), 0u);
  Random random(seed, stream);
  for (uint32_t i = count; i > 1; --i) std::swap((*order)[i - 1], (*order)[random.below(i)]);
}

}  // namespace galley
