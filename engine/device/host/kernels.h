// The kernel table of the host device: one row of functions per instruction set.
//
// The same source (kernels.inc and its parts) is compiled once per instruction set with its own
// compiler flags; everything else is built for baseline x86-64 and calls through this table.
// Every function here works on one thread, allocates nothing and touches only what its task names.
// Only plain types: an inline function of a library that were compiled here with AVX-512 could
// replace its baseline copy at link time.
#pragma once

#include <cstdint>

namespace galley::device {

constexpr int64_t kPanelOutputs = 32;  // outputs per panel of a packed weight
// Blocking of the matrix product: rows of a packed block of A, depth of one pass, and the depth of
// a low-rank part that is added within the same pass.
constexpr int64_t kGemmRowBlock = 264;
constexpr int64_t kGemmDepthBlock = 576;
constexpr int64_t kGemmMaxExtension = 256;
constexpr int64_t kGemmBlockFloats = kGemmRowBlock * (kGemmDepthBlock + kGemmMaxExtension) + 64;
/// Scratch of gemm(), per thread: the packed block of A, one panel of B, one panel of the low-rank
/// B.
constexpr int64_t kGemmScratchFloats =
    kGemmBlockFloats + (kGemmDepthBlock + kGemmMaxExtension) * kPanelOutputs;

// Blocking of attention: query rows of one block, rows (query rows x heads) of one task, and rows x
// head dimension (a multiple of 32) of one task; the kernels choose how many keys a block has.
constexpr int64_t kAttentionQueryBlock = 64;
constexpr int64_t kAttentionWideQueryBlock = 48;  // for heads of more than 64
constexpr int64_t kAttentionMaxRows = 192;
constexpr int64_t kAttentionMaxHeadDim = 256;
constexpr int64_t kAttentionMaxElements = kAttentionMaxRows * 64;
/// Scratch of attention, per thread.
constexpr int64_t kAttentionScratchFloats = 64000;

/// How the second operand B(k, n) of a product lies in memory.
enum class BForm : uint8_t {
  kRows,                 // b[k * stride + n]
  kColumns,              // b[n * stride + k]
  kPanelF32,             // packed weight, n = output, k = input
  kPanelBf16,            //
  kPanelF32Transposed,   // packed weight, n = input, k = output
  kPanelBf16Transposed,  //
  kPanelInt8Transposed   // as f32: value times the scale of its output
};

/// c(m, n) = init + alpha * sum_k a(m, k) b(k, n) + sum_k2 scale2 * a2(m, k2) b2(k2, n), and
/// before, where `down` is given, a2(m, k2) = down_scale * sum_k a(m, k) down(k, k2).
struct GemmTask {
  const float* a = nullptr;  // row-major [m, k]
  int64_t a_row = 0;
  float alpha = 1.0f;
  BForm b_form = BForm::kRows;
  const void* b = nullptr;
  int64_t b_stride = 0;  // panels: the number of inputs, even for bf16, a multiple of 4 for int8
  int64_t m = 0, n = 0, k = 0;
  float* a2 = nullptr;  // row-major [m, k2]; written only where `down` is given
  int64_t a2_row = 0;
  float scale2 = 1.0f;
  BForm b2_form = BForm::kRows;  // kRows or kColumns
  const float* b2 = nullptr;
  int64_t b2_stride = 0;
  int64_t k2 = 0;                  // at most kGemmMaxExtension
  BForm down_form = BForm::kRows;  // kRows or kColumns
  const float* down = nullptr;     // null: a2 is there already
  int64_t down_stride = 0;
  float down_scale = 1.0f;
  const float* bias = nullptr;  // [n] or null
  float* c = nullptr;
  int64_t c_row = 0;
  bool add = false;  // init is c (plus bias) rather than the bias alone
};

/// c(m, n) = init + alpha * sum_k a(k, m) b(k, n), where k is long and both are row-major.
struct OuterTask {
  const float* a = nullptr;
  int64_t a_row = 0;
  float alpha = 1.0f;
  const float* b = nullptr;
  int64_t b_row = 0;
  int64_t m = 0, n = 0, k = 0;
  float* c = nullptr;  // c(m, n) = c[m * c_row + n * c_column]; one of the two is 1
  int64_t c_row = 0, c_column = 1;
  bool add = false;  // init is c rather than zero
};

struct GemmKernels {
  int tile_rows;  // partitions of rows in multiples of it leave no ragged tiles
  /// The part [m0, m1) x [n0, n1) of the product; n0 is a multiple of kPanelOutputs, and n1 too or
  /// n. Where `down` is given that is all of the columns: a2 is written by whoever has its rows.
  /// `scratch`: kGemmScratchFloats, aligned.
  void (*gemm)(const GemmTask& task, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
               float* scratch);
  /// Columns [n0, n1), as above. Fast when m is the smaller one.
  void (*outer)(const OuterTask& task, int64_t n0, int64_t n1, float* scratch);
};

/// Given to tasks of backward that add to the same dk and dv on several threads: wait(turn, b)
/// returns when this task may add to block b of keys, pass(turn, b) says that it has.
struct AttentionTurn {
  void (*wait)(const AttentionTurn* turn, int64_t block) = nullptr;
  void (*pass)(const AttentionTurn* turn, int64_t block) = nullptr;
};

/// c(m, n) = init + a_scale(m) b_scale(n) sum_k qa(m, k) qb(k, n), where qb are the values of a
/// packed int8 weight and qa = round(a / a_scale) with a_scale(m) = largest |a(m, k)| / 127.
struct Int8Task {
  const float* a = nullptr;
  int64_t a_row = 0;
  const void* b = nullptr;  // the packed weight (core/device_traits.h)
  int64_t m = 0, n = 0, k = 0;
  const float* bias = nullptr;  // [n] or null
  float* c = nullptr;
  int64_t c_row = 0;
  bool add = false;  // init is c (plus bias) rather than the bias alone
};

struct Int8Kernels {
  int tile_rows;
  /// The part [m0, m1) x [n0, n1) of the product, as GemmKernels have it. All instruction sets
  /// round alike and sum exactly.
  void (*product)(const Int8Task& task, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                  float* scratch);
};

/// Query rows [0, num_queries) of one run against all keys they see, for `num_heads` query heads
/// that share one key/value head. Pointers are at the first row and first head of the task; k and v
/// at the first row of the sequence. Query row i sees the last `window` of the keys [0,
/// first_visible + i * visible_step); others are not touched.
struct AttentionTask {
  static constexpr int64_t kNoWindow = int64_t{1} << 60;
  int64_t num_queries = 0, first_visible = 0;
  int64_t window = kNoWindow;
  int64_t visible_step = 1;  // 0: the rows are heads of one token, which see the same keys
  int64_t num_heads = 0, head_dim = 0;
  float scale = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  int64_t q_row = 0, k_row = 0, v_row = 0;
  float* o = nullptr;  // set by forward; read by backward
  int64_t o_row = 0;
  float* lse = nullptr;  // [row * lse_row + head]; may be null in forward
  int64_t lse_row = 0;
  // Backward only: dq is set, dk and dv accumulate.
  const float* d_o = nullptr;
  float *dq = nullptr, *dk = nullptr, *dv = nullptr;
  int64_t d_o_row = 0, dq_row = 0, dk_row = 0, dv_row = 0;
  const AttentionTurn* turn = nullptr;  // null: nobody else adds
};

struct AttentionKernels {
  /// num_queries <= kAttentionQueryBlock (or kAttentionWideQueryBlock), and num_queries rounded up
  /// to 2 * num_heads <= kAttentionMaxRows, which times the head dimension rounded up to 32 is at
  /// most kAttentionMaxElements.
  void (*forward)(const AttentionTask& task, float* scratch);
  void (*backward)(const AttentionTask& task, float* scratch);
  /// The same with the operands of products rounded to bf16 where this row of the table has an
  /// instruction for them.
  void (*rounded_forward)(const AttentionTask& task, float* scratch);
  void (*rounded_backward)(const AttentionTask& task, float* scratch);
};

/// The numbers of one AdamW update, as PyTorch rounds them.
struct AdamWNumbers {
  float keep;  // 1 - lr * decay
  float one_minus_beta1, beta2, one_minus_beta2;
  float step_size;        // lr / (1 - beta1^t)
  float root_correction;  // sqrt(1 - beta2^t)
  float epsilon, gradient_scale;
};

/// What the mask of dropout is made of.
struct DropoutNumbers {
  uint32_t key[2];
  uint32_t threshold;  // an element is kept when its draw is at least this
  float scale;         // 1 / (1 - p)
  int64_t first_column;
};

/// Functions on one row, or on one flat range.
struct VectorKernels {
  void (*swiglu_forward)(const float* gate, const float* up, float* y, int64_t n);
  void (*swiglu_backward)(const float* gate, const float* up, const float* dy, float* d_gate,
                          float* d_up, int64_t n);
  void (*add)(const float* x, float* y, int64_t n);
  /// Returns rstd.
  float (*rmsnorm_forward)(const float* x, const float* weight, float eps, float* y, int64_t n);
  void (*rmsnorm_backward)(const float* dy, const float* x, const float* weight, float rstd,
                           float* dx, int64_t n, bool add);
  /// x [num_heads * 2 * half] in place, cos and sin [half], sin times `sign`.
  void (*rope)(float* x, int64_t num_heads, int64_t half, const float* cos, const float* sin,
               float sign);
  void (*dropout)(const float* x, uint64_t row_id, const DropoutNumbers& numbers, float* y,
                  int64_t n, bool add);
  /// Returns the loss of `target`; writes (softmax - onehot) * scale to `gradient` unless null.
  double (*cross_entropy)(const float* logits, int64_t target, float scale, float* gradient,
                          int64_t n);
  /// The largest logit (minus infinity when there is none) and sum of exp(logit - largest), with
  /// exponentials in f64.
  void (*exponential_sum)(const float* logits, int64_t n, double* largest, double* sum);
  /// In place: exp(logit - log_sum_exp) * scale.
  void (*softmax)(float* logits, double log_sum_exp, float scale, int64_t n);
  void (*adamw)(float* w, const float* g, float* m, float* v, int64_t n,
                const AdamWNumbers& numbers);
  double (*sum_of_squares)(const float* x, int64_t n);
  bool (*all_finite)(const float* x, int64_t n);
};

struct KernelTable {
  const char* name;
  GemmKernels gemm;
  Int8Kernels int8;
  AttentionKernels attention;
  VectorKernels vector;
};

/// For rows of the table with AVX-512 on a processor that has its int8 dot product too.
extern const Int8Kernels kInt8KernelsAvx512Vnni;

extern const KernelTable kKernelsPortable;
extern const KernelTable kKernelsAvx2;
extern const KernelTable kKernelsAvx512;
extern const KernelTable kKernelsAvx512Bf16;

}  // namespace galley::device
