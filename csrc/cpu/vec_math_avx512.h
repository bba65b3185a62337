// Vec and IVec, 16 lanes, as one 512-bit register each. Same functions and same bits as
// vec_math_generic.h. Included only by *_avx512.cc files.
#pragma once
// GCC 12 reports the deliberately undefined pass-through operand inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstdint>

namespace octavo {
namespace avx512 {

constexpr int kVecRegisters = 32;

using Vec = __m512;
// A wrapper: __m512i and __m512 overloads would otherwise read alike.
struct IVec {
  __m512i v;
};

inline __mmask16 lanes_below(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline Vec set1(float x) { return _mm512_set1_ps(x); }
inline IVec iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(lanes_below(n), p); }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a); }
inline void store_n(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, lanes_below(n), a); }
inline IVec load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }

inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec neg(Vec a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
inline Vec abs(Vec a) { return _mm512_abs_ps(a); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec select_lt(Vec a, Vec b, Vec t, Vec f) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), f, t);
}
inline Vec select_lanes(int from, int to, Vec t, Vec f) {
  const __mmask16 mask = static_cast<__mmask16>(lanes_below(to) & ~lanes_below(from));
  return _mm512_mask_blend_ps(mask, f, t);
}
inline Vec copy_sign(Vec a, Vec s) {
  const Vec sign = _mm512_set1_ps(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, s));
}

inline IVec as_int(Vec a) { return {_mm512_castps_si512(a)}; }
inline Vec as_float(IVec a) { return _mm512_castsi512_ps(a.v); }
inline IVec iadd(IVec a, IVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline IVec imax(IVec a, IVec b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline IVec iand(IVec a, IVec b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int N>
inline IVec shift_left(IVec a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
inline IVec shift_right_signed(IVec a) {
  return {_mm512_srai_epi32(a.v, N)};
}
inline Vec to_float(IVec a) { return _mm512_cvtepi32_ps(a.v); }
inline IVec round_to_int(Vec a) {
  return {_mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

inline float fold_add(Vec a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
inline float fold_max(Vec a) {
  const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
inline int32_t fold_imax(IVec a) { return _mm512_reduce_max_epi32(a.v); }
inline int32_t fold_iadd(IVec a) { return _mm512_reduce_add_epi32(a.v); }
inline float first_lane(Vec a) { return _mm512_cvtss_f32(a); }

inline Vec widen_bf16(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline Vec load_bf16(const uint16_t* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_bf16_n(const uint16_t* p, int n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(lanes_below(n), p));
}
inline Vec load_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Vec load_i8_n(const int8_t* p, int n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes_below(n), p)));
}

inline void store_bf16_n(uint16_t* p, Vec a, int n) {
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  const __m256i packed = _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet));
  _mm256_mask_storeu_epi16(p, lanes_below(n), packed);
}
inline void store_i8_n(int8_t* p, IVec a, int n) {
  _mm_mask_storeu_epi8(p, lanes_below(n), _mm512_cvtepi32_epi8(a.v));
}


// Four bytes a lane, as operands of dot4.
using UnsignedQuads = IVec;
using SignedQuads = IVec;
inline UnsignedQuads unsigned_quads(IVec a) { return a; }
inline SignedQuads signed_quads(IVec a) { return a; }
// acc + the four products of each lane's bytes, exact.
inline IVec dot4(IVec acc, UnsignedQuads u, SignedQuads s) {
  // Not the intrinsic: GCC 12 copies accumulators that live through a loop twice at every step (which
  // costs code, not measurable time).
  __asm__("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(u.v), "v"(s.v));
  return acc;
}
// Lanes must be within 0 .. 255.
inline void store_u8(uint8_t* p, IVec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
inline __m512i imax2(__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }
// Byte `slot` of each of n quads; other bytes may be somebody else's. Lanes as of store_i8_n.
inline void store_i8_in_quads(uint8_t* quads, int slot, IVec a, int n) {
  const __mmask64 bytes = 0x1111111111111111ull >> (64 - 4 * n) << slot;
  _mm512_mask_storeu_epi8(quads, bytes, _mm512_sllv_epi32(a.v, _mm512_set1_epi32(8 * slot)));
}
// Two vectors as 32 bytes; lanes must be within -128 .. 127.
inline void store_i8_pair(int8_t* p, IVec a, IVec b) {
  const __m256i low = _mm256_castsi128_si256(_mm512_cvtepi32_epi8(a.v));
  const __m256i both = _mm256_inserti128_si256(low, _mm512_cvtepi32_epi8(b.v), 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), both);
}
inline void store_i32(int32_t* p, IVec a) { _mm512_storeu_si512(p, a.v); }
// Of 16 groups of 32 signed bytes: lane g of low = the sum of the first half of group g, of sum = that
// of the group.
inline void half_sums(const int8_t* bytes, IVec& low, IVec& sum) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i halves[2];  // lane 4 b + a of halves[i]: half b of zmm 4 i + a
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    __m512i v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      v[j] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones,
                                 _mm512_loadu_si512(bytes + 256 * i + 64 * j));
    }
    const __m512i x = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]),
                                       _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i y = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]),
                                       _mm512_unpackhi_epi32(v[2], v[3]));
    halves[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
  }
  // Group 8 i + 2 a + b / 2 has halves b and b + 1.
  const __m512i even = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(4));
  low = {_mm512_permutex2var_epi32(halves[0], even, halves[1])};
  sum = {_mm512_add_epi32(low.v, _mm512_permutex2var_epi32(halves[0], odd, halves[1]))};
}
// Lane r of the result is the maximum of the 16 lanes of row r, rows being 16 x 16 values.
inline IVec row_imax(const float* rows) {
  __m512i a[8], b[4], c[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i x = _mm512_loadu_si512(rows + 16 * i);
    const __m512i y = _mm512_loadu_si512(rows + 16 * (i + 8));
    a[i] = imax2(_mm512_shuffle_i32x4(x, y, 0x44), _mm512_shuffle_i32x4(x, y, 0xEE));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[i] = imax2(_mm512_shuffle_i32x4(a[i], a[i + 4], 0x88),
                 _mm512_shuffle_i32x4(a[i], a[i + 4], 0xDD));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    c[i] = imax2(_mm512_unpacklo_epi64(b[i], b[i + 2]), _mm512_unpackhi_epi64(b[i], b[i + 2]));
  }
  const __m512 x = _mm512_castsi512_ps(c[0]), y = _mm512_castsi512_ps(c[1]);
  const __m512i mixed = imax2(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                              _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xDD)));
  // Four lanes each of rows 0, 2, 1, 3 (+ 0, + 8, + 4, + 12).
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return {_mm512_permutexvar_epi32(order, mixed)};
}

}  // namespace avx512
}  // namespace octavo
