// AttentionOps of the host device.
#include <algorithm>
#include <atomic>

#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

static_assert(kAttentionMaxHeadDim == 256, "the checked wrapper promises heads of up to 256");

struct Operands {
  const AttentionShape* shape;
  std::span<const AttentionItem> items;
  ConstMatrix q, k, v, d_o;
  Matrix o, dq, dk, dv;
  float* lse;
};

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Query heads are taken in groups that share the loaded keys; a group and a block of query rows
/// are chosen so that all rows of a task fit its scratch.
struct Blocking {
  int64_t group;        // query heads per key/value head
  int64_t heads;        // per task
  int64_t chunks;       // tasks per group
  int64_t query_block;  // rows per task
  explicit Blocking(const AttentionShape& shape)
      : group(shape.num_heads / shape.num_kv_heads),
        heads(std::min<int64_t>(group, 16)),
        chunks(ceil_divide(group, heads)),
        query_block(std::min(kAttentionQueryBlock, kAttentionMaxRows / heads)) {}
};

/// The task of `heads` query heads from `head` on and query rows [begin, end) of one item.
AttentionTask make_task(const Operands& x, const AttentionItem& item, int64_t head, int64_t heads,
                        int64_t begin, int64_t end) {
  const AttentionShape& shape = *x.shape;
  const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const int64_t row = item.query_row + begin;
  const int64_t column = head * shape.head_dim, kv_column = kv_head * shape.head_dim;
  AttentionTask t;
  t.num_queries = end - begin;
  t.first_visible = item.num_keys - item.num_queries + begin + 1;
  t.num_heads = heads;
  t.head_dim = shape.head_dim;
  t.scale = shape.scale;
  t.q = x.q.data + row * x.q.stride + column;
  t.q_row = x.q.stride;
  t.k = x.k.data + item.key_row * x.k.stride + kv_column;
  t.k_row = x.k.stride;
  t.v = x.v.data + item.key_row * x.v.stride + kv_column;
  t.v_row = x.v.stride;
  t.o = x.o.data + row * x.o.stride + column;
  t.o_row = x.o.stride;
  if (x.lse != nullptr) t.lse = x.lse + row * shape.num_heads + head;
  t.lse_row = shape.num_heads;
  if (x.dq.data != nullptr) {
    t.d_o = x.d_o.data + row * x.d_o.stride + column;
    t.d_o_row = x.d_o.stride;
    t.dq = x.dq.data + row * x.dq.stride + column;
    t.dq_row = x.dq.stride;
    t.dk = x.dk.data + item.key_row * x.dk.stride + kv_column;
    t.dk_row = x.dk.stride;
    t.dv = x.dv.data + item.key_row * x.dv.stride + kv_column;
    t.dv_row = x.dv.stride;
  }
  return t;
}

class HostAttentionOps final : public AttentionOps {
 public:
  explicit HostAttentionOps(const HostRuntime& runtime) : runtime_(runtime) {}

 protected:
  void do_forward(const AttentionShape& shape, std::span<const AttentionItem> items,
                  const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v, const Matrix& o,
                  float* lse) override {
    const Operands x = {&shape, items, q, k, v, {}, o, {}, {}, {}, lse};
    std::atomic<int64_t> next{0};
    runtime_.pool->run([&](int thread) { run_forward(x, thread, &next); });
  }
  void do_backward(const AttentionShape& shape, std::span<const AttentionItem> items,
                   const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                   const ConstMatrix& o, const float* lse, const ConstMatrix& d_o, const Matrix& dq,
                   const Matrix& dk, const Matrix& dv) override {
    // The kernel's task is one struct for both directions; backward only reads o and lse.
    const Matrix read_o = {const_cast<float*>(o.data), o.rows, o.cols, o.stride};
    const Operands x = {&shape, items, q, k, v, d_o, read_o, dq, dk, dv, const_cast<float*>(lse)};
    std::atomic<int64_t> next{0};
    runtime_.pool->run([&](int thread) { run_backward(x, thread, &next); });
  }

 private:
  // Both hand out tasks in order of a ticket. A task's result does not depend on who computes it:
  // no two tasks write the same memory.
  void run_forward(const Operands& x, int thread, std::atomic<int64_t>* next) const;
  void run_backward(const Operands& x, int thread, std::atomic<int64_t>* next) const;

  const HostRuntime& runtime_;
};

/// A task is one block of query rows of one group of heads; the long ones of an item come first.
void HostAttentionOps::run_forward(const Operands& x, int thread,
                                   std::atomic<int64_t>* next) const {
  const Blocking blocking(*x.shape);
  int64_t mine = next->fetch_add(1, std::memory_order_relaxed);
  int64_t before = 0;  // tasks of the items so far
  for (const AttentionItem& item : x.items) {
    const int64_t blocks = ceil_divide(item.num_queries, blocking.query_block);
    const int64_t columns = x.shape->num_kv_heads * blocking.chunks;
    for (; mine < before + blocks * columns; mine = next->fetch_add(1, std::memory_order_relaxed)) {
      const int64_t block = blocks - 1 - (mine - before) / columns;
      const int64_t column = (mine - before) % columns;
      const int64_t first = column % blocking.chunks * blocking.heads;
      const int64_t head = column / blocking.chunks * blocking.group + first;
      const int64_t begin = block * blocking.query_block;
      const int64_t end = std::min(item.num_queries, begin + blocking.query_block);
      const AttentionTask task =
          make_task(x, item, head, std::min(blocking.heads, blocking.group - first), begin, end);
      runtime_.kernels->attention.forward(task, runtime_.attention_scratch(thread));
    }
    before += blocks * columns;
  }
}

/// A task is one key/value head of one item: its dk and dv accumulate in a fixed order.
void HostAttentionOps::run_backward(const Operands& x, int thread,
                                    std::atomic<int64_t>* next) const {
  const Blocking blocking(*x.shape);
  const int64_t num_kv_heads = x.shape->num_kv_heads;
  const int64_t num_tasks = static_cast<int64_t>(x.items.size()) * num_kv_heads;
  for (int64_t mine; (mine = next->fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
    const AttentionItem& item = x.items[static_cast<size_t>(mine / num_kv_heads)];
    const int64_t first_head = mine % num_kv_heads * blocking.group;
    for (int64_t begin = 0; begin < item.num_queries; begin += blocking.query_block) {
      const int64_t end = std::min(item.num_queries, begin + blocking.query_block);
      for (int64_t first = 0; first < blocking.group; first += blocking.heads) {
        const int64_t heads = std::min(blocking.heads, blocking.group - first);
        runtime_.kernels->attention.backward(
            make_task(x, item, first_head + first, heads, begin, end),
            runtime_.attention_scratch(thread));
      }
    }
  }
}

}  // namespace

std::unique_ptr<AttentionOps> make_host_attention_ops(const HostRuntime& runtime) {
  return std::make_unique<HostAttentionOps>(runtime);
}

}  // namespace galley::device
