// Kernels for processors with AVX-512 (F, BW, DQ, VL).
#define GALLEY_LANES 16
#define GALLEY_TILE_ROWS 12
#define GALLEY_KERNELS kKernelsAvx512
#define GALLEY_KERNELS_NAME "avx512"
#include "engine/device/host/kernels.inc"
