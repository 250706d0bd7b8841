#include "engine/model/adapter_layout.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "engine/core/error.h"
#include "engine/core/strings.h"

namespace galley::model {
namespace {

constexpr std::array<TensorState, 4> kStates = {TensorState::kReplicated, TensorState::kRowsSplit,
                                                TensorState::kColumnsSplit,
                                                TensorState::kPartialSum};

/// Elements that one worker sends and collectives of a change of state.
struct Price {
  double elements = 0;
  int collectives = 0;
  Price& operator+=(const Price& other) {
    elements += other.elements;
    collectives += other.collectives;
    return *this;
  }
};

/// Prices among t workers of a tensor of `elements` (ring algorithms).
class Prices {
 public:
  explicit Prices(int tp_size)
      : share_(static_cast<double>(tp_size - 1) / static_cast<double>(tp_size)) {}
  Price all_reduce(double elements) const { return {2 * share_ * elements, 1}; }
  Price reduce_scatter(double elements) const { return {share_ * elements, 1}; }
  Price all_gather(double elements) const { return {share_ * elements, 1}; }

  /// Of an activation from one state into another; nothing where that is no change that computes
  /// the same tensor.
  std::optional<Price> change(TensorState from, TensorState to, double elements) const {
    if (from == to) return Price{};
    if (from == TensorState::kReplicated && to == TensorState::kColumnsSplit) return Price{};
    if (from == TensorState::kColumnsSplit && to == TensorState::kReplicated) {
      return all_gather(elements);
    }
    if (from == TensorState::kPartialSum && to == TensorState::kReplicated) {
      return all_reduce(elements);
    }
    if (from == TensorState::kPartialSum && to == TensorState::kColumnsSplit) {
      return reduce_scatter(elements);
    }
    return std::nullopt;
  }

 private:
  double share_;
};

/// State of activation x weight^T; nothing where a worker lacks what it would have to multiply. A
/// parameter cannot be a partial sum: the optimizer is not linear.
std::optional<TensorState> product(TensorState activation, TensorState weight) {
  using enum TensorState;
  if (activation == kRowsSplit || weight == kPartialSum) return std::nullopt;
  switch (weight) {
    case kReplicated:
      // Of split features the worker takes its columns of the weight.
      return activation == kColumnsSplit ? kPartialSum : activation;
    case kRowsSplit:
      if (activation != kReplicated) return std::nullopt;
      return kColumnsSplit;
    case kColumnsSplit:
      // Summands meet the columns of other workers: x_1 w_2 would be missing.
      if (activation == kPartialSum) return std::nullopt;
      return kPartialSum;
    case kPartialSum:
      break;
  }
  return std::nullopt;
}

/// One combination, followed through forward and backward.
class Walk {
 public:
  Walk(const AdapterLayoutCase& given, TensorState a, TensorState b, TensorState low_rank)
      : given_(given),
        prices_(given.tp_size),
        tokens_(static_cast<double>(given.tokens_per_step)),
        low_elements_(tokens_ * static_cast<double>(given.rank)),
        out_elements_(tokens_ * static_cast<double>(given.out)) {
    layout_.a = a;
    layout_.b = b;
    layout_.low_rank = low_rank;
  }

  /// Nothing when it does not compute y.
  std::optional<AdapterLayout> layout() {
    if (!forward() || !backward()) return std::nullopt;
    layout_.forward_elements = forward_.elements;
    layout_.backward_elements = backward_.elements;
    layout_.gradient_elements = gradient_.elements;
    layout_.collectives = forward_.collectives + backward_.collectives + gradient_.collectives;
    layout_.held_elements = held();
    layout_.how = how();
    return layout_;
  }

 private:
  bool is_row() const { return given_.split == LinearSplit::kRow; }

  bool forward() {
    const auto made =
        product(is_row() ? TensorState::kColumnsSplit : TensorState::kReplicated, layout_.a);
    if (!made) return false;
    made_ = *made;
    const auto moved = prices_.change(made_, layout_.low_rank, low_elements_);
    if (!moved) return false;
    forward_ += *moved;
    const auto sum = product(layout_.low_rank, layout_.b);
    if (!sum) return false;
    sum_ = *sum;
    // Onto the partial sum of a row-parallel linear anything can be added: a replicated tensor by
    // one worker, split features by their owners. Column-parallel ones need the worker's features.
    if (is_row()) return true;
    const auto added = prices_.change(sum_, TensorState::kColumnsSplit, out_elements_);
    if (added) forward_ += *added;
    return added.has_value();
  }

  /// The gradient of y is replicated for a row-parallel linear (behind the all-reduce) and the
  /// worker's features for a column-parallel one.
  bool backward() {
    TensorState d_low;
    // B^T dy, and dB = dy^T (x A^T).
    if (layout_.b == TensorState::kRowsSplit) {
      d_low = TensorState::kPartialSum;  // own features of dy, own rows of B; dB is exact
    } else {
      const bool slice = !is_row() && sum_ == TensorState::kReplicated;
      if (!is_row() && !slice) backward_ += prices_.all_gather(out_elements_);
      if (slice) {
        d_low = TensorState::kPartialSum;
      } else {
        const bool columns = layout_.b == TensorState::kColumnsSplit ||
                             layout_.low_rank == TensorState::kColumnsSplit;
        d_low = columns ? TensorState::kColumnsSplit : TensorState::kReplicated;
      }
      const bool exact = is_row() && layout_.low_rank == TensorState::kReplicated;
      if (layout_.b == TensorState::kReplicated && !exact) {
        gradient_ += prices_.all_reduce(static_cast<double>(given_.out * given_.rank));
      }
    }
    return backward_a(d_low);
  }

  /// dA = d_low^T x and dx = d_low A; dx of a column-parallel linear joins the base's all-reduce in
  /// whatever state, that of a row-parallel one must be the worker's features.
  bool backward_a(TensorState d_low) {
    TensorState wanted = d_low;
    if (layout_.a == TensorState::kRowsSplit) wanted = TensorState::kColumnsSplit;
    if (layout_.a == TensorState::kColumnsSplit || is_row()) wanted = TensorState::kReplicated;
    const auto moved = prices_.change(d_low, wanted, low_elements_);
    if (!moved) return false;
    backward_ += *moved;
    const bool exact = !is_row() && wanted == TensorState::kReplicated;
    if (layout_.a == TensorState::kReplicated && !exact) {
      gradient_ += prices_.all_reduce(static_cast<double>(given_.in * given_.rank));
    }
    return true;
  }

  static int64_t fullest(int64_t count, int parts) { return (count + parts - 1) / parts; }

  double held() const {
    const int tp = given_.tp_size;
    const auto size = [&](TensorState state, int64_t rows, int64_t columns) {
      if (state == TensorState::kRowsSplit) rows = fullest(rows, tp);
      if (state == TensorState::kColumnsSplit) columns = fullest(columns, tp);
      return static_cast<double>(rows * columns);
    };
    return size(layout_.a, given_.rank, given_.in) + size(layout_.b, given_.out, given_.rank);
  }

  std::string low_rank_text() const {
    if (made_ == layout_.low_rank) return "x A^T as it falls out";
    if (made_ == TensorState::kReplicated) return "own part of x A^T";
    if (made_ == TensorState::kColumnsSplit) return "gather of x A^T";
    return layout_.low_rank == TensorState::kReplicated ? "all-reduce of x A^T"
                                                        : "reduce-scatter of x A^T";
  }

  std::string how() const {
    std::string text = low_rank_text();
    if (is_row()) {
      if (sum_ == TensorState::kReplicated) return text + "; one worker adds to its partial sum";
      return text + "; each adds to its partial sum, before the all-reduce";
    }
    if (sum_ == TensorState::kPartialSum) return text + "; reduce-scatter onto the features";
    if (sum_ == TensorState::kReplicated) return text + "; own features of all";
    return text + "; added to the own features";
  }

  const AdapterLayoutCase& given_;
  const Prices prices_;
  const double tokens_, low_elements_, out_elements_;
  AdapterLayout layout_;
  TensorState made_ = TensorState::kReplicated;  // x A^T before a change of state
  TensorState sum_ = TensorState::kReplicated;   // (x A^T) B^T before it is added
  Price forward_, backward_, gradient_;
};

AdapterLayout undivided(const AdapterLayoutCase& given) {
  AdapterLayout layout;
  layout.held_elements = static_cast<double>(given.rank * (given.in + given.out));
  layout.how = "one worker";
  return layout;
}

std::string padded(std::string_view text, size_t width) {
  std::string cell(text);
  cell.resize(std::max(cell.size() + 1, width), ' ');
  return cell;
}

}  // namespace

std::string_view tensor_state_name(TensorState state) {
  switch (state) {
    case TensorState::kReplicated:
      return "replicated";
    case TensorState::kRowsSplit:
      return "rows split";
    case TensorState::kColumnsSplit:
      return "columns split";
    case TensorState::kPartialSum:
      return "partial sum";
  }
  return "?";
}

std::vector<AdapterLayout> adapter_layouts(const AdapterLayoutCase& given) {
  GALLEY_CHECK(given.tp_size >= 1 && given.rank >= 1 && given.in >= 1 && given.out >= 1);
  if (given.tp_size == 1) return {undivided(given)};
  std::vector<AdapterLayout> layouts;
  for (const TensorState a : kStates) {
    for (const TensorState b : kStates) {
      for (const TensorState low_rank : kStates) {
        if (auto layout = Walk(given, a, b, low_rank).layout()) layouts.push_back(*layout);
      }
    }
  }
  std::stable_sort(layouts.begin(), layouts.end(),
                   [](const AdapterLayout& x, const AdapterLayout& y) {
                     return std::tuple(x.communicated(), x.held_elements, x.collectives) <
                            std::tuple(y.communicated(), y.held_elements, y.collectives);
                   });
  return layouts;
}

AdapterLayout choose_adapter_layout(const AdapterLayoutCase& given) {
  const std::vector<AdapterLayout> layouts = adapter_layouts(given);
  GALLEY_CHECK(!layouts.empty());
  return layouts.front();
}

std::string to_text(const AdapterLayoutCase& given, const std::vector<AdapterLayout>& layouts) {
  std::string text =
      cat(given.split == LinearSplit::kRow ? "row" : "column", "-parallel linear ", given.in,
          " -> ", given.out, ", rank ", given.rank, ", ", given.tp_size, " workers, ",
          given.tokens_per_step, " tokens per step; elements sent by one worker per step\n");
  text += padded("A", 15) + padded("x A^T", 15) + padded("B", 15) +
          "    forward   backward  gradients       held  how\n";
  for (const AdapterLayout& layout : layouts) {
    text += padded(tensor_state_name(layout.a), 15) +
            padded(tensor_state_name(layout.low_rank), 15) +
            padded(tensor_state_name(layout.b), 15);
    for (const double elements : {layout.forward_elements, layout.backward_elements,
                                  layout.gradient_elements, layout.held_elements}) {
      text += format("%11s", format_count(elements).c_str());
    }
    text += "  " + layout.how + "\n";
  }
  return text;
}

}  // namespace galley::model
