// Vec and IVec, 16 virtual lanes, in portable C++ (GCC/Clang vector types): the meaning of every lane
// operation.
//
// Its twins vec_math_<isa>.h offer the same functions with the same results bit for bit, so the
// kernels are written once over them (*_impl.h). Two vectors of 8 lanes, which compilers
// map to what the machine has; no library calls but the exact ones (fma, rint).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo {
namespace generic {

// Vecs that fit a register file of 16 x 256 or 32 x 128 bits; kernels size their tiles by it.
constexpr int kVecRegisters = 8;

typedef float F32x8 __attribute__((vector_size(32)));
typedef int32_t I32x8 __attribute__((vector_size(32)));
typedef uint32_t U32x8 __attribute__((vector_size(32)));

struct Vec {
  F32x8 lo, hi;
};
struct IVec {
  I32x8 lo, hi;
};

inline Vec set1(float x) {
  const F32x8 v = {x, x, x, x, x, x, x, x};
  return {v, v};
}
inline IVec iset1(int32_t x) {
  const I32x8 v = {x, x, x, x, x, x, x, x};
  return {v, v};
}
inline Vec load(const float* p) {
  Vec r;
  std::memcpy(&r.lo, p, 32);
  std::memcpy(&r.hi, p + 8, 32);
  return r;
}
inline void store(float* p, Vec a) {
  std::memcpy(p, &a.lo, 32);
  std::memcpy(p + 8, &a.hi, 32);
}
// Lanes n .. 15 read as zero; memory behind them is not touched.
inline Vec load_n(const float* p, int n) {
  if (n == 16) return load(p);
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
inline void store_n(float* p, Vec a, int n) {
  if (n == 16) return store(p, a);
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
inline IVec load_i32(const void* p) {
  IVec r;
  std::memcpy(&r.lo, p, 32);
  std::memcpy(&r.hi, static_cast<const char*>(p) + 32, 32);
  return r;
}

inline Vec add(Vec a, Vec b) { return {a.lo + b.lo, a.hi + b.hi}; }
inline Vec sub(Vec a, Vec b) { return {a.lo - b.lo, a.hi - b.hi}; }
inline Vec mul(Vec a, Vec b) { return {a.lo * b.lo, a.hi * b.hi}; }
inline Vec div(Vec a, Vec b) { return {a.lo / b.lo, a.hi / b.hi}; }
inline Vec neg(Vec a) { return {-a.lo, -a.hi}; }
inline F32x8 fma8(F32x8 a, F32x8 b, F32x8 c) {
  F32x8 r = c;
  for (int i = 0; i < 8; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
}
inline Vec fma(Vec a, Vec b, Vec c) { return {fma8(a.lo, b.lo, c.lo), fma8(a.hi, b.hi, c.hi)}; }
// a > b ? a : b, so b where either is NaN.
inline Vec max(Vec a, Vec b) {
  return {a.lo > b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi};
}
// a < b ? a : b, so b where either is NaN.
inline Vec min(Vec a, Vec b) {
  return {a.lo < b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi};
}
// a < b ? t : f
inline Vec select_lt(Vec a, Vec b, Vec t, Vec f) {
  return {a.lo < b.lo ? t.lo : f.lo, a.hi < b.hi ? t.hi : f.hi};
}
// t in lanes from .. to - 1, f elsewhere.
inline Vec select_lanes(int from, int to, Vec t, Vec f) {
  const I32x8 lo = {0, 1, 2, 3, 4, 5, 6, 7};
  const I32x8 hi = lo + 8;
  return {((lo >= from) & (lo < to)) ? t.lo : f.lo, ((hi >= from) & (hi < to)) ? t.hi : f.hi};
}

inline IVec as_int(Vec a) { return {(I32x8)a.lo, (I32x8)a.hi}; }
inline Vec as_float(IVec a) { return {(F32x8)a.lo, (F32x8)a.hi}; }
inline IVec iadd(IVec a, IVec b) {
  return {(I32x8)((U32x8)a.lo + (U32x8)b.lo), (I32x8)((U32x8)a.hi + (U32x8)b.hi)};
}
inline IVec imax(IVec a, IVec b) {
  return {a.lo > b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi};
}
inline IVec iand(IVec a, IVec b) { return {a.lo & b.lo, a.hi & b.hi}; }
template <int N>
inline IVec shift_left(IVec a) {
  return {(I32x8)((U32x8)a.lo << N), (I32x8)((U32x8)a.hi << N)};
}
template <int N>
inline IVec shift_right_signed(IVec a) {
  return {a.lo >> N, a.hi >> N};
}
inline Vec to_float(IVec a) {
  return {__builtin_convertvector(a.lo, F32x8), __builtin_convertvector(a.hi, F32x8)};
}
inline Vec abs(Vec a) { return as_float(iand(as_int(a), iset1(0x7fffffff))); }
// The sign of s on the magnitude of a.
inline Vec copy_sign(Vec a, Vec s) {
  const IVec magnitude = iand(as_int(a), iset1(0x7fffffff));
  return as_float(iadd(magnitude, iand(as_int(s), iset1(INT32_MIN))));
}
// Nearest even; |a| must be at most 2^22. Adding 1.5 * 2^23 leaves the integer in the low bits.
inline IVec round_to_int(Vec a) {
  const Vec magic = set1(12582912.0f);
  const IVec bits = as_int(add(a, magic));
  return iadd(bits, iset1(-0x4B400000));
}

// The fold tree: 8+8, 4+4, 2+2, 1+1.
inline float fold_add(Vec a) {
  const F32x8 s8 = a.lo + a.hi;
  float s[4];
  for (int i = 0; i < 4; ++i) s[i] = s8[i] + s8[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}
inline float fold_max(Vec a) {
  float m[16];
  store(m, a);
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) m[i] = m[i] > m[i + half] ? m[i] : m[i + half];
  }
  return m[0];
}
inline int32_t fold_imax(IVec a) {
  const I32x8 m = a.lo > a.hi ? a.lo : a.hi;
  int32_t r = m[0];
  for (int i = 1; i < 8; ++i) r = m[i] > r ? m[i] : r;
  return r;
}
inline int32_t fold_iadd(IVec a) {
  const I32x8 s = a.lo + a.hi;
  int32_t r = s[0];
  for (int i = 1; i < 8; ++i) r += s[i];
  return r;
}
inline float first_lane(Vec a) { return a.lo[0]; }

inline Vec load_bf16(const uint16_t* p) {
  typedef uint16_t U16x8 __attribute__((vector_size(16)));
  U16x8 lo, hi;
  std::memcpy(&lo, p, 16);
  std::memcpy(&hi, p + 8, 16);
  return {(F32x8)(__builtin_convertvector(lo, U32x8) << 16),
          (F32x8)(__builtin_convertvector(hi, U32x8) << 16)};
}
inline Vec load_bf16_n(const uint16_t* p, int n) {
  uint16_t lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}
// In two steps: GCC 12 widens 8 to 32 bits lane by lane when asked for it at once.
inline Vec load_i8(const int8_t* p) {
  typedef int8_t I8x16 __attribute__((vector_size(16)));
  typedef int16_t I16x16 __attribute__((vector_size(32)));
  typedef int16_t I16x8 __attribute__((vector_size(16)));
  I8x16 bytes;
  std::memcpy(&bytes, p, 16);
  const I16x16 words = __builtin_convertvector(bytes, I16x16);
  I16x8 lo, hi;
  std::memcpy(&lo, &words, 16);
  std::memcpy(&hi, reinterpret_cast<const char*>(&words) + 16, 16);
  return to_float({__builtin_convertvector(lo, I32x8), __builtin_convertvector(hi, I32x8)});
}
inline Vec load_i8_n(const int8_t* p, int n) {
  int8_t lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_i8(lanes);
}

// Nearest even; a NaN stays a (quiet) NaN.
inline void store_bf16_n(uint16_t* p, Vec a, int n) {
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &lanes[i], 4);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    p[i] = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
  }
}
// Lanes must be within -128 .. 127.
inline void store_i8_n(int8_t* p, IVec a, int n) {
  int32_t lanes[16];
  std::memcpy(lanes, &a.lo, 32);
  std::memcpy(lanes + 8, &a.hi, 32);
  for (int i = 0; i < n; ++i) p[i] = static_cast<int8_t>(lanes[i]);
}


// Four bytes a lane, as operands of dot4.
using UnsignedQuads = IVec;
using SignedQuads = IVec;
inline UnsignedQuads unsigned_quads(IVec a) { return a; }
inline SignedQuads signed_quads(IVec a) { return a; }
inline I32x8 dot4x8(I32x8 acc, U32x8 u, U32x8 s) {
  for (int j = 0; j < 4; ++j) {
    acc += (I32x8)((u >> (8 * j)) & 255u) * ((I32x8)(s << (24 - 8 * j)) >> 24);
  }
  return acc;
}
// acc + the four products of each lane's bytes, exact.
inline IVec dot4(IVec acc, UnsignedQuads u, SignedQuads s) {
  return {dot4x8(acc.lo, (U32x8)u.lo, (U32x8)s.lo), dot4x8(acc.hi, (U32x8)u.hi, (U32x8)s.hi)};
}
// Lanes must be within 0 .. 255.
inline void store_u8(uint8_t* p, IVec a) {
  int32_t lanes[16];
  std::memcpy(lanes, &a.lo, 32);
  std::memcpy(lanes + 8, &a.hi, 32);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(lanes[i]);
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
  std::memcpy(p, &a.lo, 32);
  std::memcpy(p + 8, &a.hi, 32);
}
inline int32_t sum16(const int8_t* p) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += p[i];
  return sum;
}

}  // namespace generic
}  // namespace octavo

#include "cpu/vec_folds.h"
