// One round of a peak loop: an instruction on fourteen independent chains of sums.
//
// Written as assembly: compilers put stores and moves between instructions that they schedule.
// Fourteen chains hide the latency of two units and fit sixteen registers with two operands.
#pragma once

namespace galley::device {

constexpr int kPeakChains = 14;

}  // namespace galley::device

/// sum[0..13] = INSTRUCTION(a, b, sum); "x" for registers of up to 256 bits, "v" for 512.
#define GALLEY_PEAK_ROUND(INSTRUCTION, REGISTER, sum, a, b)                                      \
  asm volatile(INSTRUCTION " %[x], %[y], %0\n\t" INSTRUCTION " %[x], %[y], %1\n\t" INSTRUCTION   \
                           " %[x], %[y], %2\n\t" INSTRUCTION " %[x], %[y], %3\n\t" INSTRUCTION   \
                           " %[x], %[y], %4\n\t" INSTRUCTION " %[x], %[y], %5\n\t" INSTRUCTION   \
                           " %[x], %[y], %6\n\t" INSTRUCTION " %[x], %[y], %7\n\t" INSTRUCTION   \
                           " %[x], %[y], %8\n\t" INSTRUCTION " %[x], %[y], %9\n\t" INSTRUCTION   \
                           " %[x], %[y], %10\n\t" INSTRUCTION " %[x], %[y], %11\n\t" INSTRUCTION \
                           " %[x], %[y], %12\n\t" INSTRUCTION " %[x], %[y], %13\n\t"             \
               : "+" REGISTER(sum[0]), "+" REGISTER(sum[1]), "+" REGISTER(sum[2]),               \
                 "+" REGISTER(sum[3]), "+" REGISTER(sum[4]), "+" REGISTER(sum[5]),               \
                 "+" REGISTER(sum[6]), "+" REGISTER(sum[7]), "+" REGISTER(sum[8]),               \
                 "+" REGISTER(sum[9]), "+" REGISTER(sum[10]), "+" REGISTER(sum[11]),             \
                 "+" REGISTER(sum[12]), "+" REGISTER(sum[13])                                    \
               : [x] REGISTER(a), [y] REGISTER(b))
