// operator new that counts, for a whole test program: include it in exactly one of its sources
// (replacements of operator new cannot be inline).
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace galley::testing {
inline std::atomic<long> num_allocations{0};
}  // namespace galley::testing

// Not inlined: the compiler would see malloc and free behind them and call the pair mismatched.
__attribute__((noinline)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  galley::testing::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size > 0 ? size : 1);
}
__attribute__((noinline)) void* operator new(std::size_t size) {
  if (void* memory = ::operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
