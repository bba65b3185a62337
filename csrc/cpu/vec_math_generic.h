// Vec and IVec, 16 virtual lanes, in portable C++: the meaning of every lane operation.
//
// The AVX-512 twin is vec_math_avx512.h; both offer the same functions with the same results bit for
// bit, so the kernels are written once over them (*_impl.h). Lane loops only, no library calls but
// the exact ones (fma, sqrt, rint).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo {
namespace generic {

struct Vec {
  float v[16];
};
struct IVec {
  int32_t v[16];
};

#define OCTAVO_LANES for (int i = 0; i < 16; ++i)

inline Vec set1(float x) {
  Vec r;
  OCTAVO_LANES r.v[i] = x;
  return r;
}
inline IVec iset1(int32_t x) {
  IVec r;
  OCTAVO_LANES r.v[i] = x;
  return r;
}
inline Vec load(const float* p) {
  Vec r;
  std::memcpy(r.v, p, 64);
  return r;
}
// Lanes n .. 15 read as zero; memory behind them is not touched.
inline Vec load_n(const float* p, int n) {
  Vec r = set1(0.0f);
  for (int i = 0; i < n; ++i) r.v[i] = p[i];
  return r;
}
inline void store(float* p, Vec a) { std::memcpy(p, a.v, 64); }
inline void store_n(float* p, Vec a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
inline IVec load_i32(const void* p) {
  IVec r;
  std::memcpy(r.v, p, 64);
  return r;
}

inline Vec add(Vec a, Vec b) {
  OCTAVO_LANES a.v[i] += b.v[i];
  return a;
}
inline Vec sub(Vec a, Vec b) {
  OCTAVO_LANES a.v[i] -= b.v[i];
  return a;
}
inline Vec mul(Vec a, Vec b) {
  OCTAVO_LANES a.v[i] *= b.v[i];
  return a;
}
inline Vec div(Vec a, Vec b) {
  OCTAVO_LANES a.v[i] /= b.v[i];
  return a;
}
inline Vec fma(Vec a, Vec b, Vec c) {
  OCTAVO_LANES c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return c;
}
inline Vec neg(Vec a) {
  OCTAVO_LANES a.v[i] = -a.v[i];
  return a;
}
inline Vec abs(Vec a) {
  OCTAVO_LANES a.v[i] = std::fabs(a.v[i]);
  return a;
}
// a > b ? a : b, so b where either is NaN.
inline Vec max(Vec a, Vec b) {
  OCTAVO_LANES b.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return b;
}
// a < b ? a : b, so b where either is NaN.
inline Vec min(Vec a, Vec b) {
  OCTAVO_LANES b.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return b;
}
// a < b ? t : f
inline Vec select_lt(Vec a, Vec b, Vec t, Vec f) {
  OCTAVO_LANES f.v[i] = a.v[i] < b.v[i] ? t.v[i] : f.v[i];
  return f;
}
// t in lanes from .. to - 1, f elsewhere.
inline Vec select_lanes(int from, int to, Vec t, Vec f) {
  OCTAVO_LANES f.v[i] = (i >= from && i < to) ? t.v[i] : f.v[i];
  return f;
}
// The sign of s on the magnitude of a.
inline Vec copy_sign(Vec a, Vec s) {
  OCTAVO_LANES a.v[i] = std::copysign(a.v[i], s.v[i]);
  return a;
}

inline IVec as_int(Vec a) {
  IVec r;
  std::memcpy(r.v, a.v, 64);
  return r;
}
inline Vec as_float(IVec a) {
  Vec r;
  std::memcpy(r.v, a.v, 64);
  return r;
}
inline IVec iadd(IVec a, IVec b) {
  OCTAVO_LANES a.v[i] =
      static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]));
  return a;
}
inline IVec imax(IVec a, IVec b) {
  OCTAVO_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline IVec iand(IVec a, IVec b) {
  OCTAVO_LANES a.v[i] &= b.v[i];
  return a;
}
template <int N>
inline IVec shift_left(IVec a) {
  OCTAVO_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << N);
  return a;
}
template <int N>
inline IVec shift_right_signed(IVec a) {
  OCTAVO_LANES a.v[i] >>= N;
  return a;
}
inline Vec to_float(IVec a) {
  Vec r;
  OCTAVO_LANES r.v[i] = static_cast<float>(a.v[i]);
  return r;
}
// Nearest even; |a| must be below 2^31.
inline IVec round_to_int(Vec a) {
  IVec r;
  OCTAVO_LANES r.v[i] = static_cast<int32_t>(std::nearbyint(a.v[i]));
  return r;
}

// The fold tree: 8+8, 4+4, 2+2, 1+1.
inline float fold_add(Vec a) {
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  }
  return a.v[0];
}
inline float fold_max(Vec a) {
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
}
inline int32_t fold_imax(IVec a) {
  for (int i = 1; i < 16; ++i) a.v[0] = a.v[0] > a.v[i] ? a.v[0] : a.v[i];
  return a.v[0];
}
inline int32_t fold_iadd(IVec a) {
  for (int i = 1; i < 16; ++i) a.v[0] += a.v[i];
  return a.v[0];
}
inline float first_lane(Vec a) { return a.v[0]; }

inline Vec load_bf16_n(const uint16_t* p, int n) {
  IVec r = iset1(0);
  for (int i = 0; i < n; ++i) r.v[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i]) << 16);
  return as_float(r);
}
inline Vec load_bf16(const uint16_t* p) { return load_bf16_n(p, 16); }
inline Vec load_i8_n(const int8_t* p, int n) {
  Vec r = set1(0.0f);
  for (int i = 0; i < n; ++i) r.v[i] = static_cast<float>(p[i]);
  return r;
}
inline Vec load_i8(const int8_t* p) { return load_i8_n(p, 16); }

// Nearest even; a NaN stays a (quiet) NaN.
inline void store_bf16_n(uint16_t* p, Vec a, int n) {
  for (int i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &a.v[i], 4);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    p[i] = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
  }
}
// Lanes must be within -128 .. 127.
inline void store_i8_n(int8_t* p, IVec a, int n) {
  for (int i = 0; i < n; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}

#undef OCTAVO_LANES

}  // namespace generic
}  // namespace octavo
