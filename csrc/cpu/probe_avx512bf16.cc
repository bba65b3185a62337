// The bf16 probe, vdpbf16ps; everything else is AVX-512's.
#include <immintrin.h>

#include "cpu_isa.h"
#include "probe_kernels.h"

namespace octavo {
namespace {

constexpr int kSums = 12;

float dot_bf16(const void* operands, int64_t rounds) {
  const __m512bh a = (__m512bh)_mm512_loadu_si512(operands);
  const __m512bh b = (__m512bh)_mm512_loadu_si512(static_cast<const uint8_t*>(operands) + 64);
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t r = 0; r < rounds; ++r) {
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
  }
  __m512 all = _mm512_setzero_ps();
  for (const __m512& sum : sums) all = _mm512_add_ps(all, sum);
  float lanes[16];
  _mm512_storeu_ps(lanes, all);
  return lanes[0] + lanes[15];
}

}  // namespace

const ProbeTable* probe_avx512bf16() {
  static const ProbeTable table = {"avx512bf16", {}, {dot_bf16, 32 * kSums}, {}, nullptr};
  return cpu_has_avx512bf16() ? &table : nullptr;
}

}  // namespace octavo
