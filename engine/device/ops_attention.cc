// The checked wrappers of attention.
#include "engine/core/error.h"
#include "engine/device/ops.h"

namespace galley::device {
namespace {

constexpr int64_t kMaxHeadDim = 256;

void check_shape(const AttentionShape& shape) {
  GALLEY_CHECK(shape.num_kv_heads > 0 && shape.num_heads > 0 &&
               shape.num_heads % shape.num_kv_heads == 0);
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
