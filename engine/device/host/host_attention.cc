// AttentionOps of the host device.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

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
  int64_t heads;        // per task
  int64_t chunks;       // tasks per group of query heads of one key/value head, at most
  int64_t max_queries;  // query rows per task
  explicit Blocking(const AttentionShape& shape) {
    const int64_t max_rows =
        std::min(kAttentionMaxRows, kAttentionMaxElements / (ceil_divide(shape.head_dim, 32) * 32));
    int64_t group = 0;
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      const HeadGroup all = head_group(shape, kv_head);
      group = std::max(group, all.end - all.begin);
    }
    // At least twelve rows per head: a register tile.
    heads = std::min({group, int64_t{16}, max_rows / 12});
    chunks = ceil_divide(group, heads);
    // The kernels may take rows in pairs.
    max_queries = std::min(shape.head_dim <= 64 ? kAttentionQueryBlock : kAttentionWideQueryBlock,
                           max_rows / heads / 2 * 2);
  }
  int64_t num_blocks(const AttentionItem& item) const {
    return ceil_divide(item.num_queries, max_queries);
  }
  /// Query rows of one block, spread evenly over as few blocks as possible.
  int64_t query_block(const AttentionItem& item) const {
    return ceil_divide(item.num_queries, std::max<int64_t>(1, num_blocks(item)));
  }
};

/// One token: its heads become the rows, so that one register tile takes them all.
void rows_from_heads(AttentionTask* t) {
  t->num_queries = t->num_heads;
  t->num_heads = 1;
  t->visible_step = 0;
  t->q_row = t->o_row = t->d_o_row = t->dq_row = t->head_dim;
  t->lse_row = 1;
}

/// The task of these heads and query rows [begin, end) of one item.
AttentionTask make_task(const Operands& x, const AttentionItem& item, const HeadGroup& heads,
                        int64_t begin, int64_t end) {
  const AttentionShape& shape = *x.shape;
  const int64_t head = heads.begin;
  const int64_t row = item.query_row + begin;
  const int64_t column = head * shape.head_dim, kv_column = heads.kv_head * shape.head_dim;
  AttentionTask t;
  t.num_queries = end - begin;
  t.first_visible = item.num_keys - item.num_queries + begin + 1;
  const int64_t last_visible = t.first_visible + t.num_queries - 1;
  if (shape.window > 0 && shape.window < last_visible) t.window = shape.window;
  t.num_heads = heads.end - heads.begin;
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
    t.dq = x.dq.data + row * x.dq.stride + column;
    t.dq_row = x.dq.stride;
    t.dk = x.dk.data + item.key_row * x.dk.stride + kv_column;
    t.dk_row = x.dk.stride;
    t.dv = x.dv.data + item.key_row * x.dv.stride + kv_column;
    t.dv_row = x.dv.stride;
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

/// Turns of tasks that add to the same rows: a task adds to a block of keys once its predecessor
/// has. Tasks are begun in growing order, so the lowest unfinished one never waits, however few
/// threads really run.
class TaskTurns {
 public:
  TaskTurns() {
    for (int64_t n = 0; n < kSlots; ++n) slot(n) = finished(n - kSlots);
  }
  /// Where the numbers of the next call's tasks begin. None comes back, so nothing is cleared.
  int64_t base() const { return base_; }
  void advance(int64_t num_tasks) { base_ += num_tasks; }

  void begin(int64_t n) {
    wait([&] { return slot(n).load(std::memory_order_acquire) == finished(n - kSlots); });
    publish(n, 0);
  }
  /// Task n has added to this many blocks.
  void publish(int64_t n, int64_t blocks) {
    slot(n).store(n * kSteps + blocks, std::memory_order_release);
  }
  void finish(int64_t n) { slot(n).store(finished(n), std::memory_order_release); }
  /// Returns when task n has added to more than `block` blocks.
  void wait_for(int64_t n, int64_t block) {
    wait([&] { return slot(n).load(std::memory_order_acquire) > n * kSteps + block; });
  }

 private:
  static constexpr int64_t kSlots = 256;
  static constexpr int64_t kSteps = int64_t{1} << 24;  // blocks of keys of one task, at most
  static constexpr int kSpins = 200;

  static int64_t finished(int64_t n) { return n * kSteps + kSteps - 1; }
  std::atomic<int64_t>& slot(int64_t n) { return slots_[static_cast<size_t>(n % kSlots)]; }
  template <typename Condition>
  static void wait(const Condition& holds) {
    for (int spins = 0; !holds(); ++spins) {
      if (spins < kSpins) {
        __builtin_ia32_pause();
      } else {
        std::this_thread::yield();  // who is waited for may need this processor
      }
    }
  }

  int64_t base_ = 0;
  std::array<std::atomic<int64_t>, kSlots> slots_;
};

/// The turn of one task, as its kernel sees it.
struct Turn : AttentionTurn {
  Turn(TaskTurns* all, int64_t n, int64_t before, bool last)
      : turns(all), number(n), predecessor(before), publishes(last) {
    wait = [](const AttentionTurn* turn, int64_t block) {
      const auto* self = static_cast<const Turn*>(turn);
      if (self->predecessor >= 0) self->turns->wait_for(self->predecessor, block);
    };
    pass = [](const AttentionTurn* turn, int64_t block) {
      const auto* self = static_cast<const Turn*>(turn);
      if (self->publishes) self->turns->publish(self->number, block + 1);
    };
  }
  TaskTurns* turns;
  int64_t number;
  int64_t predecessor;  // negative: none
  bool publishes;       // false: more heads of this task will add to the same keys
};

/// Which key/value heads of items are whole tasks of backward, and which are shared by all threads.
/// Units are numbered item by item, head by head; the last ones are shared.
int64_t first_shared_unit(const AttentionShape& shape, std::span<const AttentionItem> items,
                          int64_t threads) {
  const int64_t num_units = static_cast<int64_t>(items.size()) * shape.num_kv_heads;
  if (threads == 1) return num_units;
  const auto cost_of = [&](int64_t unit) {
    const HeadGroup heads = head_group(shape, unit % shape.num_kv_heads);
    return visible_pairs(items[static_cast<size_t>(unit / shape.num_kv_heads)], shape.window) *
           static_cast<double>(heads.end - heads.begin);
  };
  double largest = 0, smallest = 1e300;
  for (int64_t unit = 0; unit < num_units; ++unit) {
    largest = std::max(largest, cost_of(unit));
    smallest = std::min(smallest, cost_of(unit));
  }
  if (largest == smallest) return num_units - num_units % threads;
  // Threads that find no more whole unit wait at most for the largest one; the shared units keep
  // them busy.
  double wanted = largest * static_cast<double>(threads - 1);
  int64_t unit = num_units;
  for (; unit > 0 && wanted > 0; --unit) {
    wanted -= cost_of(unit - 1);
  }
  return unit;
}

int64_t num_shared_tasks(const AttentionShape& shape, std::span<const AttentionItem> items,
                         int64_t shared) {
  const Blocking blocking(shape);
  int64_t count = 0;
  for (int64_t unit = shared; unit < static_cast<int64_t>(items.size()) * shape.num_kv_heads;
       ++unit) {
    count += blocking.num_blocks(items[static_cast<size_t>(unit / shape.num_kv_heads)]);
  }
  return count;
}

/// Who computes a task depends on timing, its result does not: no two tasks of forward write the
/// same memory, and those of backward add to keys in the order of the query rows. Results are the
/// same for any number of threads.
class HostAttentionOps final : public AttentionOps {
 public:
  explicit HostAttentionOps(const HostRuntime& runtime) : runtime_(runtime) {}

 protected:
  void do_forward(const AttentionShape& shape, std::span<const AttentionItem> items,
                  const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v, const Matrix& o,
                  float* lse) override;
  void do_backward(const AttentionShape& shape, std::span<const AttentionItem> items,
                   const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                   const ConstMatrix& o, const float* lse, const ConstMatrix& d_o, const Matrix& dq,
                   const Matrix& dk, const Matrix& dv) override;

 private:
  /// body(thread) on all threads, or on the caller alone when there is little to do.
  template <typename Body>
  void run(const Operands& x, const Body& body) const {
    int64_t work = 0;
    const int64_t window = x.shape->window;
    for (const AttentionItem& item : x.items) {
      const int64_t reach = window == 0 ? item.num_keys : window + item.num_queries;
      work += item.num_queries * std::min(item.num_keys, reach);
    }
    work *= x.shape->num_heads * x.shape->head_dim;
    if (work < kSmallWork) {
      body(0);
    } else {
      runtime_.pool->run(body);
    }
  }
  /// One block of query rows of one key/value head, all of its query heads.
  void backward_block(const Operands& x, const AttentionItem& item, int64_t kv_head, int64_t block,
                      float* scratch, int64_t number, int64_t predecessor);
  /// The part of one thread: whole units first, then blocks of the shared ones.
  void backward_part(const Operands& x, int64_t shared, std::atomic<int64_t>* next_whole,
                     std::atomic<int64_t>* next_shared, float* scratch);

  const HostRuntime& runtime_;
  TaskTurns turns_;
};

/// A task is one block of query rows of one group of heads; the long ones of an item come first.
void HostAttentionOps::do_forward(const AttentionShape& shape, std::span<const AttentionItem> items,
                                  const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                                  const Matrix& o, float* lse) {
  const Operands x = {&shape, items, q, k, v, {}, o, {}, {}, {}, lse};
  const AttentionKernels& kernels = runtime_.kernels->attention;
  const auto kernel =
      shape.operands == ProductOperands::kExact ? kernels.forward : kernels.rounded_forward;
  const Blocking blocking(shape);
  const int64_t columns = shape.num_kv_heads * blocking.chunks;
  std::atomic<int64_t> next{0};
  run(x, [&](int thread) {
    TaskWalk walk(&next);
    for (const AttentionItem& item : x.items) {
      const int64_t blocks = blocking.num_blocks(item), query_block = blocking.query_block(item);
      walk.visit(blocks * columns, [&](int64_t index) {
        const int64_t begin = (blocks - 1 - index / columns) * query_block;
        const int64_t end = std::min(item.num_queries, begin + query_block);
        const int64_t kv_head = index % columns / blocking.chunks;
        const HeadGroup group = head_group(shape, kv_head);
        const int64_t first = group.begin + index % columns % blocking.chunks * blocking.heads;
        if (first >= group.end) return;  // of a group that is incomplete
        const HeadGroup heads = {kv_head, first, std::min(first + blocking.heads, group.end)};
        kernel(make_task(x, item, heads, begin, end), runtime_.attention_scratch(thread));
      });
    }
  });
}

void HostAttentionOps::backward_block(const Operands& x, const AttentionItem& item, int64_t kv_head,
                                      int64_t block, float* scratch, int64_t number,
                                      int64_t predecessor) {
  const AttentionKernels& kernels = runtime_.kernels->attention;
  const auto kernel =
      x.shape->operands == ProductOperands::kExact ? kernels.backward : kernels.rounded_backward;
  const Blocking blocking(*x.shape);
  const int64_t begin = block * blocking.query_block(item);
  const int64_t end = std::min(item.num_queries, begin + blocking.query_block(item));
  const HeadGroup group = head_group(*x.shape, kv_head);
  for (int64_t first = group.begin; first < group.end; first += blocking.heads) {
    const HeadGroup heads = {kv_head, first, std::min(first + blocking.heads, group.end)};
    AttentionTask task = make_task(x, item, heads, begin, end);
    const Turn turn(&turns_, number, predecessor, heads.end == group.end);
    if (number >= 0) task.turn = &turn;
    kernel(task, scratch);
  }
}

void HostAttentionOps::backward_part(const Operands& x, int64_t shared,
                                     std::atomic<int64_t>* next_whole,
                                     std::atomic<int64_t>* next_shared, float* scratch) {
  const int64_t num_kv_heads = x.shape->num_kv_heads;
  const Blocking blocking(*x.shape);
  for (int64_t unit; (unit = next_whole->fetch_add(1)) < shared;) {
    const AttentionItem& item = x.items[static_cast<size_t>(unit / num_kv_heads)];
    for (int64_t block = 0; block < blocking.num_blocks(item); ++block) {
      backward_block(x, item, unit % num_kv_heads, block, scratch, -1, -1);
    }
  }
  TaskWalk walk(next_shared);
  int64_t before = turns_.base();
  for (size_t i = static_cast<size_t>(shared / num_kv_heads); i < x.items.size(); ++i) {
    const AttentionItem& item = x.items[i];
    const int64_t first_head =
        std::max<int64_t>(0, shared - static_cast<int64_t>(i) * num_kv_heads);
    const int64_t heads = num_kv_heads - first_head;
    // Heads take turns, so that neighbours in time seldom add to the same rows.
    const int64_t tasks = blocking.num_blocks(item) * heads;
    walk.visit(tasks, [&](int64_t index) {
      const int64_t number = before + index;
      turns_.begin(number);
      backward_block(x, item, first_head + index % heads, index / heads, scratch, number,
                     index < heads ? -1 : number - heads);
      turns_.finish(number);
    });
    before += tasks;
  }
}

void HostAttentionOps::do_backward(const AttentionShape& shape,
                                   std::span<const AttentionItem> items, const ConstMatrix& q,
                                   const ConstMatrix& k, const ConstMatrix& v, const ConstMatrix& o,
                                   const float* lse, const ConstMatrix& d_o, const Matrix& dq,
                                   const Matrix& dk, const Matrix& dv) {
  // The kernel's task is one struct for both directions; backward only reads o and lse.
  const Matrix read_o = {const_cast<float*>(o.data), o.rows, o.cols, o.stride};
  const Operands x = {&shape, items, q, k, v, d_o, read_o, dq, dk, dv, const_cast<float*>(lse)};
  const int64_t shared = first_shared_unit(shape, items, runtime_.pool->size());
  std::atomic<int64_t> next_whole{0}, next_shared{0};
  run(x, [&](int thread) {
    backward_part(x, shared, &next_whole, &next_shared, runtime_.attention_scratch(thread));
  });
  turns_.advance(num_shared_tasks(shape, items, shared));
}

}  // namespace

std::unique_ptr<AttentionOps> make_host_attention_ops(const HostRuntime& runtime) {
  return std::make_unique<HostAttentionOps>(runtime);
}

}  // namespace galley::device
