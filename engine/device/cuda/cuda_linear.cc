#include <map>
#include <tuple>

#include "engine/core/error.h"
#include "engine/core/strings.h"
#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_device.h"
#include "engine/device/cuda/cuda_kernels.h"

namespace galley::device {
namespace {

// Rows of x are rounded to bf16 through a buffer of this size before they meet bf16 weights.
constexpr size_t kRoundBytes = 16u << 20;

template <typename Handle, cublasStatus_t (*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle != nullptr) Destroy(handle);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle handle = nullptr;
};
using MatmulDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// One operand as cuBLASLt sees it: a row-major matrix is a column-major one with sides swapped.
struct Operand {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;
  cublasOperation_t op = CUBLAS_OP_N;
  int64_t rows = 0, cols = 0, stride = 0;  // of the row-major matrix
};

Operand operand(const ConstMatrix& m, cublasOperation_t op) {
  return {m.data, CUDA_R_32F, op, m.rows, m.cols, m.stride};
}

class CudaLinearOps : public LinearOps {
 public:
  CudaLinearOps(CudaDevice& device, CudaStream& stream) : device_(device), stream_(stream) {
    GALLEY_CUBLAS(cublasLtCreate(&handle_));
    workspace_ = device.allocate(device.traits().gemm_workspace_bytes, "cuBLASLt workspace");
  }
  ~CudaLinearOps() override { cublasLtDestroy(handle_); }

 protected:
  void do_pack_weight(const WeightHandle& weight, DType source, const void* host_rows,
                      int64_t row_begin, int64_t num_rows) override {
    if (weight.kind == WeightKind::kInt8) {
      throw Error(Reason::kUnsupported,
                  "CUDA devices have no int8 weights; store them as bf16 or f32");
    }
    const int64_t count = num_rows * weight.in;
    const bool bf16 = weight.kind == WeightKind::kBf16;
    const size_t width = bf16 ? 2 : 4;
    char* to = weight.arena->at<char>(weight.offset_bytes) +
               static_cast<size_t>(row_begin * weight.in) * width;
    if (source == (bf16 ? DType::kBf16 : DType::kF32)) {
      device_.copy_to_device(stream_, to, host_rows, static_cast<size_t>(count) * width);
      device_.synchronize(stream_);
      return;
    }
    staging_.resize(static_cast<size_t>(count) * width);
    for (int64_t i = 0; i < count; ++i) {
      const float value = element(source, host_rows, i);
      if (bf16) {
        reinterpret_cast<uint16_t*>(staging_.data())[i] = f32_to_bf16(value);
      } else {
        reinterpret_cast<float*>(staging_.data())[i] = value;
      }
    }
    device_.copy_to_device(stream_, to, staging_.data(), staging_.size());
    device_.synchronize(stream_);
  }

  void do_forward(const ConstMatrix& x, const WeightHandle& weight, const LowRank* low_rank,
                  const Matrix& y, Write write) override {
    if (low_rank != nullptr && low_rank->activation == LowRank::Activation::kComputed) {
      do_matmul_nt(x, low_rank->a, 1.0f, low_rank->xa, Write::kSet);
    }
    with_weight(x, weight, CUBLAS_OP_T, y, write);
    if (low_rank != nullptr)
      do_matmul_nt(low_rank->xa, low_rank->b, low_rank->scale, y, Write::kAdd);
    if (weight.bias != nullptr) launch_add_bias(stream_.get(), weight.bias, y);
  }

  void do_backward_input(const ConstMatrix& dy, const WeightHandle& weight, const LowRank* low_rank,
                         const Matrix& dx, Write write) override {
    if (low_rank != nullptr && low_rank->activation == LowRank::Activation::kComputed) {
      do_matmul_nn(dy, low_rank->b, low_rank->scale, low_rank->xa, Write::kSet);
    }
    with_weight(dy, weight, CUBLAS_OP_N, dx, write);
    if (low_rank != nullptr) do_matmul_nn(low_rank->xa, low_rank->a, 1.0f, dx, Write::kAdd);
  }

  void do_matmul_nt(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    multiply(operand(b, CUBLAS_OP_T), operand(a, CUBLAS_OP_N), a.cols, alpha, c, write);
  }
  void do_matmul_nn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    multiply(operand(b, CUBLAS_OP_N), operand(a, CUBLAS_OP_N), a.cols, alpha, c, write);
  }
  void do_matmul_tn(const ConstMatrix& a, const ConstMatrix& b, float alpha, const Matrix& c,
                    Write write) override {
    multiply(operand(b, CUBLAS_OP_N), operand(a, CUBLAS_OP_T), a.rows, alpha, c, write);
  }

 private:
  static float element(DType dtype, const void* data, int64_t i) {
    switch (dtype) {
      case DType::kBf16:
        return bf16_to_f32(static_cast<const uint16_t*>(data)[i]);
      case DType::kF16:
        return f16_to_f32(static_cast<const uint16_t*>(data)[i]);
      default:
        return static_cast<const float*>(data)[i];
    }
  }

  /// out sets/adds x W^T (op T) or x W (op N). bf16 weights meet x rounded to bf16, sums in f32.
  void with_weight(const ConstMatrix& x, const WeightHandle& weight, cublasOperation_t op,
                   const Matrix& out, Write write) {
    Operand w{weight.arena->at<char>(weight.offset_bytes),
              CUDA_R_32F,
              op,
              weight.out,
              weight.in,
              weight.in};
    if (weight.kind == WeightKind::kF32) {
      multiply(w, operand(x, CUBLAS_OP_N), x.cols, 1.0f, out, write);
      return;
    }
    w.type = CUDA_R_16BF;
    if (rounded_.bytes() == 0) rounded_ = device_.allocate(kRoundBytes, "bf16 rows of a product");
    const int64_t most = static_cast<int64_t>(kRoundBytes / 2) / x.cols;
    GALLEY_CHECK(most > 0);
    for (int64_t begin = 0; begin < x.rows; begin += most) {
      const int64_t count = std::min(most, x.rows - begin);
      const ConstMatrix part(x.data + begin * x.stride, count, x.cols, x.stride);
      launch_to_bf16(stream_.get(), part, rounded_.at<uint16_t>(0));
      const Operand rounded{rounded_.data(), CUDA_R_16BF, CUBLAS_OP_N, count, x.cols, x.cols};
      const Matrix piece{out.data + begin * out.stride, count, out.cols, out.stride};
      multiply(w, rounded, x.cols, 1.0f, piece, write);
    }
  }

  static void set_layout(Layout* layout, cudaDataType_t type, int64_t rows, int64_t cols,
                         int64_t stride) {
    GALLEY_CUBLAS(cublasLtMatrixLayoutCreate(&layout->handle, type, static_cast<uint64_t>(cols),
                                             static_cast<uint64_t>(rows), stride));
  }

  /// Column-major: c^T [n, m] = op(first) op(second), both seen with sides swapped.
  void multiply(const Operand& first, const Operand& second, int64_t depth, float alpha,
                const Matrix& c, Write write) {
    if (c.rows == 0 || c.cols == 0) return;
    GALLEY_CHECK(depth > 0);
    MatmulDesc desc;
    GALLEY_CUBLAS(cublasLtMatmulDescCreate(&desc.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    GALLEY_CUBLAS(cublasLtMatmulDescSetAttribute(desc.handle, CUBLASLT_MATMUL_DESC_TRANSA,
                                                 &first.op, sizeof first.op));
    GALLEY_CUBLAS(cublasLtMatmulDescSetAttribute(desc.handle, CUBLASLT_MATMUL_DESC_TRANSB,
                                                 &second.op, sizeof second.op));
    Layout a, b, d;
    set_layout(&a, first.type, first.rows, first.cols, first.stride);
    set_layout(&b, second.type, second.rows, second.cols, second.stride);
    set_layout(&d, CUDA_R_32F, c.rows, c.cols, c.stride);
    const float beta = write == Write::kAdd ? 1.0f : 0.0f;
    const cublasLtMatmulAlgo_t algorithm = choose(desc, a, b, d, first, second, c);
    GALLEY_CUBLAS(cublasLtMatmul(handle_, desc.handle, &alpha, first.data, a.handle, second.data,
                                 b.handle, &beta, c.data, d.handle, c.data, d.handle, &algorithm,
                                 workspace_.data(), workspace_.bytes(), stream_.get()));
  }

  cublasLtMatmulAlgo_t choose(const MatmulDesc& desc, const Layout& a, const Layout& b,
                              const Layout& d, const Operand& first, const Operand& second,
                              const Matrix& c) {
    const Key key{first.type,  first.op,      second.op, first.rows, first.cols, first.stride,
                  second.rows, second.stride, c.rows,    c.cols,     c.stride};
    const auto found = algorithms_.find(key);
    if (found != algorithms_.end()) return found->second;
    Preference preference;
    GALLEY_CUBLAS(cublasLtMatmulPreferenceCreate(&preference.handle));
    const size_t workspace = workspace_.bytes();
    GALLEY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
        preference.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    // Rows may start anywhere (views into arenas): promise no more alignment than an element's.
    const uint32_t alignment = 4;
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      GALLEY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &alignment,
                                                         sizeof alignment));
    }
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    GALLEY_CUBLAS(cublasLtMatmulAlgoGetHeuristic(handle_, desc.handle, a.handle, b.handle, d.handle,
                                                 d.handle, preference.handle, 1, &result, &count));
    if (count == 0) {
      throw Error(Reason::kDeviceError,
                  cat("cuBLASLt has no algorithm for a product of [", c.rows, ", ", c.cols, "]"));
    }
    return algorithms_.emplace(key, result.algo).first->second;
  }

  using Key = std::tuple<cudaDataType_t, cublasOperation_t, cublasOperation_t, int64_t, int64_t,
                         int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
  CudaDevice& device_;
  CudaStream& stream_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  Buffer rounded_;
  std::vector<char> staging_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

std::unique_ptr<LinearOps> make_cuda_linear_ops(CudaDevice& device, CudaStream& stream) {
  return std::make_unique<CudaLinearOps>(device, stream);
}

}  // namespace galley::device
