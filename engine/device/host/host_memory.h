// Memory of the host device: zero-filled, aligned, huge pages where they pay, given back when
// freed.
//
// Functions without state; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace galley::device {

/// Zero-filled memory aligned to 64 bytes (2 MiB when large), its pages taken; nullptr when the
/// system has none.
void* host_memory_allocate(size_t bytes);
/// `bytes` as given to host_memory_allocate().
void host_memory_free(void* data, size_t bytes) noexcept;
/// Bytes that a process may still take on this machine: free memory, and what the control group
/// leaves when that is less.
uint64_t host_memory_free_bytes();

}  // namespace galley::device
