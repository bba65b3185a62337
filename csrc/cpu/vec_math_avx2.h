// Vec and IVec, 16 lanes, as two 256-bit registers each. Same functions and same bits as
// vec_math_generic.h. Included only by *_avx2.cc files.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace octavo {
namespace avx2 {

// Sixteen 256-bit registers.
constexpr int kVecRegisters = 8;

struct Vec {
  __m256 lo, hi;
};
struct IVec {
  __m256i lo, hi;
};

// All ones in lanes 0 .. n - 1 of 16.
inline IVec lanes_below(int n) {
  static const int32_t window[32] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                     -1, -1, -1, -1, -1, -1, -1, -1};
  const int32_t* at = window + 16 - n;
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 8))};
}

inline Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline IVec iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
// Lanes n .. 15 read as zero; memory behind them is not touched.
inline Vec load_n(const float* p, int n) {
  if (n == 16) return load(p);
  const IVec mask = lanes_below(n);
  return {_mm256_maskload_ps(p, mask.lo), _mm256_maskload_ps(p + 8, mask.hi)};
}
inline void store_n(float* p, Vec a, int n) {
  if (n == 16) return store(p, a);
  const IVec mask = lanes_below(n);
  _mm256_maskstore_ps(p, mask.lo, a.lo);
  _mm256_maskstore_ps(p + 8, mask.hi, a.hi);
}
inline IVec load_i32(const void* p) {
  const __m256i* at = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

inline IVec as_int(Vec a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline Vec as_float(IVec a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline Vec neg(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
inline Vec abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline Vec copy_sign(Vec a, Vec s) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, a.lo), _mm256_and_ps(sign, s.lo)),
          _mm256_or_ps(_mm256_andnot_ps(sign, a.hi), _mm256_and_ps(sign, s.hi))};
}
inline Vec blend(Vec f, Vec t, Vec mask) {
  return {_mm256_blendv_ps(f.lo, t.lo, mask.lo), _mm256_blendv_ps(f.hi, t.hi, mask.hi)};
}
inline Vec select_lt(Vec a, Vec b, Vec t, Vec f) {
  const Vec less = {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
  return blend(f, t, less);
}
inline Vec select_lanes(int from, int to, Vec t, Vec f) {
  return blend(blend(f, t, as_float(lanes_below(to))), f, as_float(lanes_below(from)));
}

inline IVec iadd(IVec a, IVec b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline IVec imax(IVec a, IVec b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
inline IVec iand(IVec a, IVec b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
template <int N>
inline IVec shift_left(IVec a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
inline IVec shift_right_signed(IVec a) {
  return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
}
inline Vec to_float(IVec a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
// Nearest even whatever the control register says.
inline IVec round_to_int(Vec a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_cvttps_epi32(_mm256_round_ps(a.lo, kNearest)),
          _mm256_cvttps_epi32(_mm256_round_ps(a.hi, kNearest))};
}

inline float fold_add(Vec a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
inline float fold_max(Vec a) {
  const __m256 s8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
inline int32_t fold_imax(IVec a) {
  const __m256i s8 = _mm256_max_epi32(a.lo, a.hi);
  const __m128i s4 = _mm_max_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_max_epi32(s4, _mm_shuffle_epi32(s4, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(s2, _mm_shuffle_epi32(s2, 0xB1)));
}
inline int32_t fold_iadd(IVec a) {
  const __m256i s8 = _mm256_add_epi32(a.lo, a.hi);
  const __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xB1)));
}
inline float first_lane(Vec a) { return _mm256_cvtss_f32(a.lo); }

inline __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline Vec load_bf16(const uint16_t* p) {
  const __m128i* at = reinterpret_cast<const __m128i*>(p);
  return {widen_bf16(_mm_loadu_si128(at)), widen_bf16(_mm_loadu_si128(at + 1))};
}
inline Vec load_bf16_n(const uint16_t* p, int n) {
  uint16_t lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(uint16_t));
  return load_bf16(lanes);
}
inline Vec load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))};
}
inline Vec load_i8_n(const int8_t* p, int n) {
  int8_t lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n));
  return load_i8(lanes);
}

// The high halves, rounded to nearest even; a NaN stays a (quiet) NaN.
inline __m256i round_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}
inline void store_bf16_n(uint16_t* p, Vec a, int n) {
  const __m256i mixed = _mm256_packus_epi32(round_bf16(a.lo), round_bf16(a.hi));
  const __m256i packed = _mm256_permute4x64_epi64(mixed, 0xD8);
  if (n == 16) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
  uint16_t lanes[16];
  std::memcpy(lanes, &packed, sizeof(lanes));
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(uint16_t));
}
// Lanes must be within -128 .. 127.
inline void store_i8_n(int8_t* p, IVec a, int n) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  if (n == 16) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  int8_t lanes[16];
  std::memcpy(lanes, &bytes, sizeof(lanes));
  std::memcpy(p, lanes, static_cast<size_t>(n));
}


// Four bytes a lane, as operands of dot4: bytes 0 and 2 of each lane as 16-bit words, and bytes 1
// and 3. (vpmaddubsw would saturate: two products of bytes need 17 bits.)
struct UnsignedQuads {
  IVec even, odd;
};
struct SignedQuads {
  IVec even, odd;
};
inline UnsignedQuads unsigned_quads(IVec a) {
  const __m256i low = _mm256_set1_epi16(0xFF);
  return {{_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low)},
          {_mm256_srli_epi16(a.lo, 8), _mm256_srli_epi16(a.hi, 8)}};
}
inline SignedQuads signed_quads(IVec a) {
  return {{_mm256_srai_epi16(_mm256_slli_epi16(a.lo, 8), 8),
           _mm256_srai_epi16(_mm256_slli_epi16(a.hi, 8), 8)},
          {_mm256_srai_epi16(a.lo, 8), _mm256_srai_epi16(a.hi, 8)}};
}
// acc + the four products of each lane's bytes, exact.
inline IVec dot4(IVec acc, UnsignedQuads u, SignedQuads s) {
  const __m256i lo = _mm256_add_epi32(_mm256_madd_epi16(u.even.lo, s.even.lo),
                                      _mm256_madd_epi16(u.odd.lo, s.odd.lo));
  const __m256i hi = _mm256_add_epi32(_mm256_madd_epi16(u.even.hi, s.even.hi),
                                      _mm256_madd_epi16(u.odd.hi, s.odd.hi));
  return {_mm256_add_epi32(acc.lo, lo), _mm256_add_epi32(acc.hi, hi)};
}
// Lanes must be within 0 .. 255.
inline void store_u8(uint8_t* p, IVec a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.lo, a.hi), 0xD8);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
// Byte `slot` of each of n quads; other bytes may be somebody else's. Lanes as of store_i8_n.
inline void store_i8_in_quads(uint8_t* quads, int slot, IVec a, int n) {
  int8_t bytes[16];
  store_i8_n(bytes, a, 16);
  for (int i = 0; i < n; ++i) quads[4 * i + slot] = static_cast<uint8_t>(bytes[i]);
}
// Two vectors as 32 bytes; lanes must be within -128 .. 127.
inline void store_i8_pair(int8_t* p, IVec a, IVec b) {
  store_i8_n(p, a, 16);
  store_i8_n(p + 16, b, 16);
}
inline void store_i32(int32_t* p, IVec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
inline int32_t sum16(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i plus128 = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
  const __m128i sums = _mm_sad_epu8(plus128, _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}

}  // namespace avx2
}  // namespace octavo

#include "cpu/vec_folds.h"
