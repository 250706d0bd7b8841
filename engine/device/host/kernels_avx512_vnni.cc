// Products with int8 weights by the int8 dot product of AVX-512 (VNNI). Not a row of the kernel
// table: rows with AVX-512 take these in place of their own where the processor has them.
#define GALLEY_LANES 16
#define GALLEY_INT8_DOT 1
#include <immintrin.h>

#include "engine/device/host/kernels.h"

namespace galley::device {
namespace {

// clang-format off
#include "engine/device/host/kernels_base.inc"
#include "engine/device/host/kernels_int8.inc"
// clang-format on

}  // namespace

const Int8Kernels kInt8KernelsAvx512Vnni = {kInt8TileRows, int8_product};

}  // namespace galley::device
