// Probes with 512-bit registers: vpdpbusd and vfmadd231ps.
#include <immintrin.h>

#include "cpu_isa.h"
#include "probe_kernels.h"

namespace octavo {
namespace {

// Covers the latency of vpdpbusd and of the fused multiply-add: 4 to 5 cycles, two a cycle at most.
constexpr int kSums = 12;

float dot_int8(const void* operands, int64_t rounds) {
  const __m512i a = _mm512_loadu_si512(operands);
  const __m512i b = _mm512_loadu_si512(static_cast<const uint8_t*>(operands) + 64);
  __m512i sums[kSums];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t r = 0; r < rounds; ++r) {
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  __m512i all = _mm512_setzero_si512();
  for (const __m512i& sum : sums) all = _mm512_add_epi32(all, sum);
  int32_t lanes[16];
  _mm512_storeu_si512(lanes, all);
  return static_cast<float>(lanes[0] ^ lanes[15]);
}

float dot_f32(const void* operands, int64_t rounds) {
  const __m512 a = _mm512_loadu_ps(operands);
  const __m512 b = _mm512_loadu_ps(static_cast<const float*>(operands) + 16);
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = a;
  for (int64_t r = 0; r < rounds; ++r) {
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
  }
  __m512 all = _mm512_setzero_ps();
  for (const __m512& sum : sums) all = _mm512_add_ps(all, sum);
  float lanes[16];
  _mm512_storeu_ps(lanes, all);
  return lanes[0] + lanes[15];
}

uint64_t read_all(const uint8_t* data, size_t bytes) {
  __m512i sums[4];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (size_t at = 0; at < bytes; at += 512) {
    for (int i = 0; i < 8; ++i) {
      sums[i & 3] = _mm512_or_si512(sums[i & 3], _mm512_load_si512(data + at + 64 * i));
    }
  }
  const __m512i all = _mm512_or_si512(_mm512_or_si512(sums[0], sums[1]),
                                      _mm512_or_si512(sums[2], sums[3]));
  uint64_t lanes[8];
  _mm512_storeu_si512(lanes, all);
  return lanes[0] ^ lanes[7];
}

}  // namespace

const ProbeTable* probe_avx512() {
  static const ProbeTable table = {
      "avx512", {dot_int8, 64 * kSums}, {}, {dot_f32, 16 * kSums}, read_all};
  return cpu_has_avx512() ? &table : nullptr;
}

}  // namespace octavo
