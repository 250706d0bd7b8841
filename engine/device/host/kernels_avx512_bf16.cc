// Kernels for processors with AVX-512 and its bf16 dot product: what kernels_avx512.cc has, but
// products with bf16 weights round their left operand to bf16 and accumulate in f32.
#define GALLEY_LANES 16
#define GALLEY_TILE_ROWS 12
#define GALLEY_BF16_DOT 1
#define GALLEY_KERNELS kKernelsAvx512Bf16
#define GALLEY_KERNELS_NAME "avx512-bf16"
#include "engine/device/host/kernels.inc"
