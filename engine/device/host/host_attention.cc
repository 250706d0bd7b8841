// AttentionOps of the host device.
#include <algorithm>
#include <atomic>

#include "engine/device/host/host_ops.h"

namespace galley::device {
namespace {

static_assert(kAttentionMaxHeadDim == 256, "the checked wrapper promises heads of up to 256");

// Multiply-adds below which waking a thread costs more than it brings.
constexpr int64_t kSmallWork = 100'000;

struct Operands {
  const AttentionShape* shape;
  std::span<const AttentionItem> items;
  ConstMatrix q, k, v, d_o;
  Matrix o, dq, dk, dv;
  float* lse;
};

int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

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

/// One token: its heads become the rows, so that one register tile takes them all.
void rows_from_heads(AttentionTask* t) {
  t->num_queries = t->num_heads;
  t->num_heads = 1;
  t->visible_step = 0;
  t->q_row = t->o_row = t->d_o_row = t->dq_row = t->head_dim;
  t->lse_row = 1;
}

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
  if (x.d_o.data != nullptr) {
    t.d_o = x.d_o.data + row * x.d_o.stride + column;
    t.d_o_row = x.d_o.stride;
    if (x.dq.data != nullptr) t.dq = x.dq.data + row * x.dq.stride + column;
    t.dq_row = x.dq.stride;
    if (x.dk.data != nullptr) {
      t.dk = x.dk.data + item.key_row * x.dk.stride + kv_column;
      t.dk_row = x.dk.stride;
      t.dv = x.dv.data + item.key_row * x.dv.stride + kv_column;
      t.dv_row = x.dv.stride;
    }
  }
  if (t.num_queries == 1) rows_from_heads(&t);
  return t;
}

/// Tasks of all items, numbered through, for threads that draw numbers in growing order.
class TaskWalk {
 public:
  explicit TaskWalk(std::atomic<int64_t>* next) : next_(next), mine_(next->fetch_add(1)) {}
  /// body(index) for the own ones among the next `count` tasks.
  template <typename Body>
  void visit(int64_t count, const Body& body) {
    for (; mine_ < before_ + count; mine_ = next_->fetch_add(1)) body(mine_ - before_);
    before_ += count;
  }

 private:
  std::atomic<int64_t>* next_;
  int64_t mine_;
  int64_t before_ = 0;
};

/// Who computes a task depends on timing, its result does not: no two tasks of one phase write the
/// same memory, and each adds in a fixed order.
class HostAttentionOps final : public AttentionOps {
 public:
  explicit HostAttentionOps(const HostRuntime& runtime) : runtime_(runtime) {}

 protected:
  void do_forward(const AttentionShape& shape, std::span<const AttentionItem> items,
                  const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v, const Matrix& o,
                  float* lse) override {
    const Operands x = {&shape, items, q, k, v, {}, o, {}, {}, {}, lse};
    query_tasks(x, runtime_.kernels->attention.forward);
  }
  void do_backward(const AttentionShape& shape, std::span<const AttentionItem> items,
                   const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                   const ConstMatrix& o, const float* lse, const ConstMatrix& d_o, const Matrix& dq,
                   const Matrix& dk, const Matrix& dv) override;

 private:
  using Kernel = void (*)(const AttentionTask&, float*);
  /// body(thread) on all threads, or on the caller alone when there is little to do.
  template <typename Body>
  void run(const Operands& x, const Body& body) const {
    int64_t work = 0;
    for (const AttentionItem& item : x.items) work += item.num_queries * item.num_keys;
    work *= x.shape->num_heads * x.shape->head_dim;
    if (work < kSmallWork) {
      body(0);
    } else {
      runtime_.pool->run(body);
    }
  }
  /// A task is one block of query rows of one group of heads; the long ones of an item come first.
  void query_tasks(const Operands& x, Kernel kernel) const;
  /// A task is `keys` keys of one key/value head of one item, and all query rows that see them.
  void key_tasks(const Operands& x, int64_t keys) const;

  const HostRuntime& runtime_;
};

void HostAttentionOps::query_tasks(const Operands& x, Kernel kernel) const {
  const Blocking blocking(*x.shape);
  const int64_t columns = x.shape->num_kv_heads * blocking.chunks;
  std::atomic<int64_t> next{0};
  run(x, [&](int thread) {
    TaskWalk walk(&next);
    for (const AttentionItem& item : x.items) {
      const int64_t blocks = ceil_divide(item.num_queries, blocking.query_block);
      walk.visit(blocks * columns, [&](int64_t index) {
        const int64_t begin = (blocks - 1 - index / columns) * blocking.query_block;
        const int64_t end = std::min(item.num_queries, begin + blocking.query_block);
        const int64_t first = index % columns % blocking.chunks * blocking.heads;
        const int64_t head = index % columns / blocking.chunks * blocking.group + first;
        const int64_t heads = std::min(blocking.heads, blocking.group - first);
        kernel(make_task(x, item, head, heads, begin, end), runtime_.attention_scratch(thread));
      });
    }
  });
}

void HostAttentionOps::key_tasks(const Operands& x, int64_t keys) const {
  const Blocking blocking(*x.shape);
  const int64_t num_kv_heads = x.shape->num_kv_heads;
  std::atomic<int64_t> next{0};
  run(x, [&](int thread) {
    TaskWalk walk(&next);
    for (const AttentionItem& item : x.items) {
      const int64_t parts = ceil_divide(item.num_keys, keys);
      walk.visit(item.num_queries == 0 ? 0 : parts * num_kv_heads, [&](int64_t index) {
        const int64_t key_begin = index / num_kv_heads * keys;
        const int64_t first_head = index % num_kv_heads * blocking.group;
        for (int64_t begin = 0; begin < item.num_queries; begin += blocking.query_block) {
          const int64_t end = std::min(item.num_queries, begin + blocking.query_block);
          // The last row of the block sees this many keys.
          if (item.num_keys - item.num_queries + end <= key_begin) continue;
          for (int64_t first = 0; first < blocking.group; first += blocking.heads) {
            const int64_t heads = std::min(blocking.heads, blocking.group - first);
            AttentionTask task = make_task(x, item, first_head + first, heads, begin, end);
            task.key_begin = key_begin;
            task.key_end = std::min(item.num_keys, key_begin + keys);
            runtime_.kernels->attention.backward(task, runtime_.attention_scratch(thread));
          }
        }
      });
    }
  });
}

/// True when one pass over whole key/value heads of items would leave threads idle for longer than
/// two passes over small tasks, which compute the scores twice (7 products instead of 5), take.
bool wants_two_passes(const AttentionShape& shape, std::span<const AttentionItem> items,
                      int64_t threads) {
  double total = 0, largest = 0;
  for (const AttentionItem& item : items) {
    const double cost = static_cast<double>(item.num_queries) *
                        static_cast<double>(2 * item.num_keys - item.num_queries);
    total += cost * static_cast<double>(shape.num_kv_heads);
    largest = std::max(largest, cost);
  }
  const double n = static_cast<double>(threads);
  return total / n + largest * (1 - 1 / n) > 1.4 * total / n;
}

void HostAttentionOps::do_backward(const AttentionShape& shape,
                                   std::span<const AttentionItem> items, const ConstMatrix& q,
                                   const ConstMatrix& k, const ConstMatrix& v, const ConstMatrix& o,
                                   const float* lse, const ConstMatrix& d_o, const Matrix& dq,
                                   const Matrix& dk, const Matrix& dv) {
  // The kernel's task is one struct for both directions; backward only reads o and lse.
  const Matrix read_o = {const_cast<float*>(o.data), o.rows, o.cols, o.stride};
  Operands x = {&shape, items, q, k, v, d_o, read_o, dq, dk, dv, const_cast<float*>(lse)};
  if (!wants_two_passes(shape, items, runtime_.pool->size())) {
    key_tasks(x, INT64_MAX / 2);
    return;
  }
  x.dk = x.dv = Matrix{};
  query_tasks(x, runtime_.kernels->attention.backward);
  x.dq = Matrix{};
  x.dk = dk;
  x.dv = dv;
  key_tasks(x, kAttentionKeyBlock);
}

}  // namespace

std::unique_ptr<AttentionOps> make_host_attention_ops(const HostRuntime& runtime) {
  return std::make_unique<HostAttentionOps>(runtime);
}

}  // namespace galley::device
