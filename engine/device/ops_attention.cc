// The checked wrappers of attention, and what its shape means.
#include <algorithm>

#include "engine/core/error.h"
#include "engine/device/ops.h"

namespace galley::device {
namespace {

constexpr int64_t kMaxHeadDim = 256;

void check_shape(const AttentionShape& shape) {
  GALLEY_CHECK(shape.num_kv_heads > 0 && shape.num_heads > 0);
  GALLEY_CHECK(shape.heads_per_kv >= 0 && shape.window >= 0);
  if (shape.heads_per_kv == 0) {
    GALLEY_CHECK(shape.num_heads % shape.num_kv_heads == 0 && shape.first_in_group == 0);
  } else {
    // The first head uses the first key/value head, the last one the last.
    GALLEY_CHECK(shape.first_in_group >= 0 && shape.first_in_group < shape.heads_per_kv);
    GALLEY_CHECK((shape.first_in_group + shape.num_heads - 1) / shape.heads_per_kv ==
                 shape.num_kv_heads - 1);
  }
  GALLEY_CHECK(shape.head_dim > 0 && shape.head_dim <= kMaxHeadDim);
  GALLEY_CHECK(shape.scale >= 0);
}

/// `heads` heads per row, and enough rows and stride for them.
void check_rows(const ConstMatrix& m, int64_t heads, int64_t head_dim) {
  GALLEY_CHECK(m.cols == heads * head_dim && m.rows >= 0);
  GALLEY_CHECK(m.rows == 0 || m.data != nullptr);
  GALLEY_CHECK(m.rows <= 1 || m.stride >= m.cols);
}

void check_items(std::span<const AttentionItem> items, const ConstMatrix& q, const ConstMatrix& k) {
  for (const AttentionItem& item : items) {
    GALLEY_CHECK(item.query_row >= 0 && item.num_queries >= 0 &&
                 item.query_row + item.num_queries <= q.rows);
    GALLEY_CHECK(item.key_row >= 0 && item.num_keys >= item.num_queries &&
                 item.key_row + item.num_keys <= k.rows);
  }
}

}  // namespace

HeadGroup head_group(const AttentionShape& shape, int64_t kv_head) {
  const int64_t heads =
      shape.heads_per_kv > 0 ? shape.heads_per_kv : shape.num_heads / shape.num_kv_heads;
  const int64_t begin = kv_head * heads - shape.first_in_group;
  return {kv_head, std::max<int64_t>(0, begin), std::min(shape.num_heads, begin + heads)};
}

double visible_pairs(const AttentionItem& item, int64_t window) {
  const auto sum_to = [](int64_t n) {
    return static_cast<double>(n) * static_cast<double>(n + 1) / 2;
  };
  // Row i sees `before` + i + 1 keys, or the window: the pairs of all rows, less what is hidden.
  const int64_t before = item.num_keys - item.num_queries;
  double pairs = sum_to(item.num_keys) - sum_to(before);
  if (window > 0 && item.num_keys > window) {
    pairs -= sum_to(item.num_keys - window) - sum_to(std::max<int64_t>(0, before - window));
  }
  return pairs;
}

void AttentionOps::forward(const AttentionShape& shape, std::span<const AttentionItem> items,
                           const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                           const Matrix& o, float* lse) {
  check_shape(shape);
  check_rows(q, shape.num_heads, shape.head_dim);
  check_rows(o, shape.num_heads, shape.head_dim);
  check_rows(k, shape.num_kv_heads, shape.head_dim);
  check_rows(v, shape.num_kv_heads, shape.head_dim);
  GALLEY_CHECK(o.rows == q.rows && v.rows == k.rows);
  check_items(items, q, k);
  do_forward(shape, items, q, k, v, o, lse);
}

void AttentionOps::backward(const AttentionShape& shape, std::span<const AttentionItem> items,
                            const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                            const ConstMatrix& o, const float* lse, const ConstMatrix& d_o,
                            const Matrix& dq, const Matrix& dk, const Matrix& dv) {
  check_shape(shape);
  for (const ConstMatrix& m : {q, o, d_o, ConstMatrix(dq)}) {
    check_rows(m, shape.num_heads, shape.head_dim);
    GALLEY_CHECK(m.rows == q.rows);
  }
  for (const ConstMatrix& m : {k, v, ConstMatrix(dk), ConstMatrix(dv)}) {
    check_rows(m, shape.num_kv_heads, shape.head_dim);
    GALLEY_CHECK(m.rows == k.rows);
  }
  GALLEY_CHECK(lse != nullptr || items.empty());
  check_items(items, q, k);
  do_backward(shape, items, q, k, v, o, lse, d_o, dq, dk, dv);
}

}  // namespace galley::device
