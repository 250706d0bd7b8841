// Memory of the host device: zero-filled, aligned, huge pages where they pay, given back when
// freed.
//
// The system puts a page into the memory of the node whose thread touches it first. So the threads
// that compute take the pages, all at once: which one takes which is decided by pure functions.
// Functions without state; safe from any thread but for the pool, which has one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/device/host/thread_pool.h"

namespace galley::device {

/// Whose node the pages of an allocation go to.
enum class PageOwner {
  kAllThreads,  // spread over the nodes as the threads are: what any thread may read at any time
  kEachThread,  // equal parts in the order of the threads: what each keeps to itself
};

/// The threads in the order in which they take pages in turn, given the node of each: the nodes
/// alternate, each as often as it has threads, so that every stretch of memory is spread.
std::vector<int> interleave_nodes(const std::vector<int>& node_of_thread);

/// Zero-filled memory aligned to 64 bytes (2 MiB when large), its pages taken by the threads of
/// `pool`; nullptr when the system has none.
void* host_memory_allocate(size_t bytes, PageOwner owner, ThreadPool& pool);
/// The same with pages that the calling thread takes.
void* host_memory_allocate(size_t bytes);
/// `bytes` as given to host_memory_allocate().
void host_memory_free(void* data, size_t bytes) noexcept;
/// Bytes that a process may still take on this machine: free memory, and what the control group
/// leaves when that is less.
uint64_t host_memory_free_bytes();

}  // namespace galley::device
