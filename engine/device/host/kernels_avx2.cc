// Kernels for processors with AVX2 and FMA.
#define GALLEY_LANES 8
#define GALLEY_TILE_ROWS 6
#define GALLEY_KERNELS kKernelsAvx2
#define GALLEY_KERNELS_NAME "avx2"
#include "engine/device/host/kernels.inc"
