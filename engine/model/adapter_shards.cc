#include "engine/model/adapter_shards.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/model/adapter_layout.h"

namespace galley::model {
namespace {

// Layouts are chosen for a step of many tokens: every worker of every step must hold the same.
constexpr int64_t kTokensOfALargeStep = int64_t{1} << 20;

/// That the cheapest layout is the one that the shards below have.
void check_layout(const AdaptedLinear& whole, int tp_size) {
  const LinearSplit split = linear_split(whole.projection);
  const AdapterLayout layout = choose_adapter_layout({.split = split,
                                                      .tp_size = tp_size,
                                                      .in = whole.in,
                                                      .out = whole.out,
                                                      .rank = whole.rank,
                                                      .tokens_per_step = kTokensOfALargeStep});
  if (split == LinearSplit::kColumn) {
    GALLEY_CHECK(layout.a == TensorState::kReplicated);
    GALLEY_CHECK(layout.low_rank == TensorState::kReplicated);
    GALLEY_CHECK(layout.b == TensorState::kRowsSplit);
  } else {
    GALLEY_CHECK(layout.a == TensorState::kColumnsSplit);
    GALLEY_CHECK(layout.low_rank == TensorState::kPartialSum);
    GALLEY_CHECK(layout.b == TensorState::kReplicated);
  }
}

/// Key/value heads that live on several tensor-parallel workers.
struct SharedHeads {
  std::vector<int64_t> index;  // by head: place among the shared ones, or -1
  std::vector<int> lowest;     // by head: the lowest worker that has it
  int64_t count = 0;
};

SharedHeads shared_heads(const ModelConfig& config, const WorkerPlace& place) {
  const auto num_heads = static_cast<size_t>(config.num_kv_heads);
  std::vector<int> holders(num_heads, 0);
  SharedHeads heads;
  heads.lowest.assign(num_heads, 0);
  for (int rank = 0; rank < place.layout.tp_size; ++rank) {
    WorkerPosition position = place.position;
    position.tp_rank = rank;
    const WorkerShape shape = worker_shape(config, place.layout, position);
    for (int64_t i = 0; i < shape.num_kv_heads; ++i) {
      const auto head = static_cast<size_t>(shape.first_kv_head + i);
      if (holders[head]++ == 0) heads.lowest[head] = rank;
    }
  }
  for (const int count : holders) heads.index.push_back(count > 1 ? heads.count++ : -1);
  return heads;
}

class Builder {
 public:
  Builder(const ModelConfig& config, const WorkerPlace& place)
      : shape_(worker_shape(config, place)), heads_(shared_heads(config, place)) {}

  AdapterShards build(const std::vector<AdaptedLinear>& linears) {
    uint64_t whole_offset = 0;
    for (const AdaptedLinear& whole : linears) {
      if (is_here(whole)) add(whole, whole_offset);
      whole_offset += whole.num_parameters();
    }
    shards_.num_whole = whole_offset;
    place_tensors();
    for (size_t i = 0; i < shards_.linears.size(); ++i) {
      count_b(shards_.linears[i], shards_.tensors[2 * i + 1]);
    }
    count_rest();
    return std::move(shards_);
  }

 private:
  bool is_here(const AdaptedLinear& linear) const {
    return linear.layer >= shape_.first_layer &&
           linear.layer < shape_.first_layer + shape_.num_layers;
  }
  bool divided() const { return shape_.tp_size > 1; }

  void add(const AdaptedLinear& whole, uint64_t whole_offset) {
    if (divided()) check_layout(whole, shape_.tp_size);
    const IndexRange rows = shape_.rows_of(whole.projection);
    const IndexRange columns = shape_.columns_of(whole.projection);
    const bool row = linear_split(whole.projection) == LinearSplit::kRow;
    AdaptedLinear own = whole;
    own.in = columns.size();
    own.out = rows.size();
    shards_.linears.push_back(own);
    shards_.tensors.push_back({.name = whole.name_a(),
                               .rows = {0, whole.rank},
                               .columns = columns,
                               .whole_offset = whole_offset,
                               .whole_columns = whole.in,
                               .replicated = divided() && !row});
    shards_.tensors.push_back(
        {.name = whole.name_b(),
         .rows = rows,
         .columns = {0, whole.rank},
         .whole_offset = whole_offset + static_cast<uint64_t>(whole.rank * whole.in),
         .whole_columns = whole.rank,
         .replicated = divided() && row});
  }

  void place_tensors() {
    uint64_t next = 0;
    for (const bool replicated : {true, false}) {
      for (ShardTensor& tensor : shards_.tensors) {
        if (tensor.replicated != replicated) continue;
        tensor.offset = next;
        next += tensor.num_elements();
      }
      if (replicated) shards_.num_replicated = next;
    }
    shards_.num_elements = next;
  }

  static bool has_kv_heads(Projection projection) {
    return projection == Projection::kK || projection == Projection::kV;
  }

  /// Shared runs and counted ranges of one B, head by head for k_proj and v_proj.
  void count_b(const AdaptedLinear& linear, const ShardTensor& b) {
    if (b.replicated || !has_kv_heads(linear.projection)) return;
    const auto head_elements = static_cast<uint64_t>(shape_.head_dim * linear.rank);
    for (int64_t i = 0; i < shape_.num_kv_heads; ++i) {
      const auto head = static_cast<size_t>(shape_.first_kv_head + i);
      const uint64_t offset = b.offset + static_cast<uint64_t>(i) * head_elements;
      if (heads_.lowest[head] != shape_.tp_rank) skipped_.push_back({offset, head_elements});
      if (heads_.index[head] < 0) continue;
      const auto index = static_cast<uint64_t>(heads_.index[head]);
      add_shared({offset, shards_.num_shared + index * head_elements, head_elements});
    }
    shards_.num_shared += static_cast<uint64_t>(heads_.count) * head_elements;
  }

  void add_shared(const SharedRun& run) {
    if (!shards_.shared.empty()) {
      SharedRun& last = shards_.shared.back();
      if (last.offset + last.count == run.offset &&
          last.shared_offset + last.count == run.shared_offset) {
        last.count += run.count;
        return;
      }
    }
    shards_.shared.push_back(run);
  }

  /// Everything but what another worker counts.
  void count_rest() {
    uint64_t next = shape_.tp_rank == 0 ? 0 : shards_.num_replicated;
    const auto add_counted = [&](uint64_t end) {
      if (end > next) {
        shards_.counted.push_back({static_cast<int64_t>(next), static_cast<int64_t>(end)});
      }
    };
    for (const auto& [offset, count] : skipped_) {
      add_counted(offset);
      next = offset + count;
    }
    add_counted(shards_.num_elements);
  }

  const WorkerShape shape_;
  const SharedHeads heads_;
  AdapterShards shards_;
  std::vector<std::pair<uint64_t, uint64_t>> skipped_;  // offset, count; ascending
};

template <typename Copy>
void for_each_row(const AdapterShards& shards, const Copy& copy) {
  for (const ShardTensor& tensor : shards.tensors) {
    const auto columns = static_cast<size_t>(tensor.columns.size());
    for (int64_t row = 0; row < tensor.rows.size(); ++row) {
      const size_t own = tensor.offset + static_cast<size_t>(row) * columns;
      const size_t whole = tensor.whole_offset +
                           static_cast<size_t>((tensor.rows.begin + row) * tensor.whole_columns +
                                               tensor.columns.begin);
      copy(own, whole, columns);
    }
  }
}

}  // namespace

AdapterShards adapter_shards(const ModelConfig& config, const std::vector<AdaptedLinear>& linears,
                             const WorkerPlace& place) {
  return Builder(config, place).build(linears);
}

void take_shard(const AdapterShards& shards, std::span<const float> whole, std::span<float> flat) {
  GALLEY_CHECK(whole.size() == shards.num_whole && flat.size() == shards.num_elements);
  for_each_row(shards, [&](size_t own, size_t from, size_t count) {
    std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(from), count,
                flat.begin() + static_cast<std::ptrdiff_t>(own));
  });
}

void put_shard(const AdapterShards& shards, std::span<const float> flat, std::span<float> whole) {
  GALLEY_CHECK(whole.size() == shards.num_whole && flat.size() == shards.num_elements);
  for_each_row(shards, [&](size_t own, size_t to, size_t count) {
    std::copy_n(flat.begin() + static_cast<std::ptrdiff_t>(own), count,
                whole.begin() + static_cast<std::ptrdiff_t>(to));
  });
}

}  // namespace galley::model
