// Probes of the baseline ISA. GCC and Clang compile these vectors for any machine; on x86 the int8
// form is the AVX2 one, which widens twice.
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "probe_kernels.h"

namespace octavo {
namespace {

// Enough independent sums to cover the latency of a fused multiply-add (4 cycles, two a cycle).
constexpr int kSums = 10;
typedef float Floats8 __attribute__((vector_size(32)));
typedef uint64_t Words4 __attribute__((vector_size(32)));

float dot_f32(const void* operands, int64_t rounds) {
#if defined(__AVX2__)
  const __m256 a = _mm256_loadu_ps(static_cast<const float*>(operands));
  const __m256 b = _mm256_loadu_ps(static_cast<const float*>(operands) + 8);
  __m256 sums[kSums];
  for (__m256& sum : sums) sum = a;
  for (int64_t r = 0; r < rounds; ++r) {
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
  }
  __m256 all = _mm256_setzero_ps();
  for (const __m256& sum : sums) all = _mm256_add_ps(all, sum);
  return _mm256_cvtss_f32(all);
#else
  Floats8 a, b, sums[kSums];
  std::memcpy(&a, operands, sizeof(a));
  std::memcpy(&b, static_cast<const char*>(operands) + sizeof(a), sizeof(b));
  for (Floats8& sum : sums) sum = a;
  for (int64_t r = 0; r < rounds; ++r) {
    for (Floats8& sum : sums) {
      for (int i = 0; i < 8; ++i) sum[i] = __builtin_fmaf(a[i], b[i], sum[i]);
    }
  }
  float all = 0;
  for (const Floats8& sum : sums) all += sum[0] + sum[7];
  return all;
#endif
}

#if defined(__AVX2__)
constexpr int64_t kInt8Macs = 32 * kSums;

float dot_int8(const void* operands, int64_t rounds) {
  const __m256i* p = static_cast<const __m256i*>(operands);
  const __m256i b = _mm256_loadu_si256(p + 1), ones = _mm256_set1_epi16(1);
  __m256i a = _mm256_loadu_si256(p);
  __m256i sums[kSums] = {};
  for (int64_t r = 0; r < rounds; ++r) {
    // A new operand each round: the widening products must not be taken out of the loop.
    a = _mm256_xor_si256(a, b);
    for (int i = 0; i < kSums; ++i) {
      const __m256i x = _mm256_xor_si256(a, sums[i]);
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, b), ones));
    }
  }
  __m256i all = _mm256_setzero_si256();
  for (const __m256i& sum : sums) all = _mm256_add_epi32(all, sum);
  return static_cast<float>(_mm256_extract_epi32(all, 0));
}
#else
constexpr int64_t kInt8Macs = 16 * kSums;
typedef int8_t Bytes16 __attribute__((vector_size(16)));
typedef int32_t Ints16 __attribute__((vector_size(64)));

float dot_int8(const void* operands, int64_t rounds) {
  Bytes16 a, b;
  std::memcpy(&a, operands, sizeof(a));
  std::memcpy(&b, static_cast<const char*>(operands) + sizeof(a), sizeof(b));
  Ints16 sums[kSums] = {};
  for (int64_t r = 0; r < rounds; ++r) {
    a ^= b;
    const Ints16 x = __builtin_convertvector(a, Ints16);
    const Ints16 y = __builtin_convertvector(b, Ints16);
    for (Ints16& sum : sums) sum += (x ^ sum) * y;
  }
  int32_t all = 0;
  for (const Ints16& sum : sums) all += sum[0] + sum[15];
  return static_cast<float>(all);
}
#endif

uint64_t read_all(const uint8_t* data, size_t bytes) {
  Words4 sums[4] = {};
  for (size_t at = 0; at < bytes; at += 256) {
    for (int i = 0; i < 8; ++i) {
      Words4 words;
      std::memcpy(&words, data + at + 32 * i, sizeof(words));
      sums[i & 3] |= words;
    }
  }
  const Words4 all = sums[0] | sums[1] | sums[2] | sums[3];
  return all[0] | all[1] | all[2] | all[3];
}

}  // namespace

const ProbeTable* probe_generic() {
  static const ProbeTable table = {
      "generic", {dot_int8, kInt8Macs}, {}, {dot_f32, 8 * kSums}, read_all};
  return &table;
}

}  // namespace octavo
