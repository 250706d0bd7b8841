// Kernels for any x86-64 processor (SSE2).
#define GALLEY_LANES 4
#define GALLEY_TILE_ROWS 4
#define GALLEY_KERNELS kKernelsPortable
#define GALLEY_KERNELS_NAME "portable"
#include "engine/device/host/kernels.inc"
