// Vec and IVec, 16 lanes, as four 128-bit registers each. Same functions and same bits as
// vec_math_generic.h. Included only by *_neon.cc files.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace octavo {
namespace neon {

// Thirty-two 128-bit registers.
constexpr int kVecRegisters = 8;

// Lanes 0 .. 3 in q0, 4 .. 7 in q1 and so on. Members, not an array: they stay in registers.
struct Vec {
  float32x4_t q0, q1, q2, q3;
};
struct IVec {
  int32x4_t q0, q1, q2, q3;
};

// op on each register of one or two vectors.
template <class R, class A, class Op>
inline R each(A a, Op op) {
  return {op(a.q0), op(a.q1), op(a.q2), op(a.q3)};
}
template <class R, class A, class B, class Op>
inline R each(A a, B b, Op op) {
  return {op(a.q0, b.q0), op(a.q1, b.q1), op(a.q2, b.q2), op(a.q3, b.q3)};
}

inline float32x4_t max4(float32x4_t a, float32x4_t b) {
  // Not vmaxq_f32, which gives NaN where either is NaN; this gives b.
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
inline float32x4_t min4(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}

inline Vec set1(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
inline IVec iset1(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
inline Vec load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
inline void store(float* p, Vec a) {
  vst1q_f32(p, a.q0);
  vst1q_f32(p + 4, a.q1);
  vst1q_f32(p + 8, a.q2);
  vst1q_f32(p + 12, a.q3);
}
// Lanes n .. 15 read as zero; memory behind them is not touched.
inline Vec load_n(const float* p, int n) {
  if (n == 16) return load(p);
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}
inline void store_n(float* p, Vec a, int n) {
  if (n == 16) return store(p, a);
  float lanes[16];
  store(lanes, a);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}
inline IVec load_i32(const void* p) {
  const uint8_t* at = static_cast<const uint8_t*>(p);
  return {vreinterpretq_s32_u8(vld1q_u8(at)), vreinterpretq_s32_u8(vld1q_u8(at + 16)),
          vreinterpretq_s32_u8(vld1q_u8(at + 32)), vreinterpretq_s32_u8(vld1q_u8(at + 48))};
}

inline IVec as_int(Vec a) {
  return each<IVec>(a, [](float32x4_t x) { return vreinterpretq_s32_f32(x); });
}
inline Vec as_float(IVec a) {
  return each<Vec>(a, [](int32x4_t x) { return vreinterpretq_f32_s32(x); });
}

inline Vec add(Vec a, Vec b) {
  return each<Vec>(a, b, [](float32x4_t x, float32x4_t y) { return vaddq_f32(x, y); });
}
inline Vec sub(Vec a, Vec b) {
  return each<Vec>(a, b, [](float32x4_t x, float32x4_t y) { return vsubq_f32(x, y); });
}
inline Vec mul(Vec a, Vec b) {
  return each<Vec>(a, b, [](float32x4_t x, float32x4_t y) { return vmulq_f32(x, y); });
}
inline Vec div(Vec a, Vec b) {
  return each<Vec>(a, b, [](float32x4_t x, float32x4_t y) { return vdivq_f32(x, y); });
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {vfmaq_f32(c.q0, a.q0, b.q0), vfmaq_f32(c.q1, a.q1, b.q1), vfmaq_f32(c.q2, a.q2, b.q2),
          vfmaq_f32(c.q3, a.q3, b.q3)};
}
inline Vec max(Vec a, Vec b) { return each<Vec>(a, b, max4); }
inline Vec min(Vec a, Vec b) { return each<Vec>(a, b, min4); }
inline Vec neg(Vec a) {
  return each<Vec>(a, [](float32x4_t x) { return vnegq_f32(x); });
}
inline Vec abs(Vec a) {
  return each<Vec>(a, [](float32x4_t x) { return vabsq_f32(x); });
}
inline Vec copy_sign(Vec a, Vec s) {
  return each<Vec>(a, s, [](float32x4_t x, float32x4_t y) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), y, x);
  });
}
inline Vec select_lt(Vec a, Vec b, Vec t, Vec f) {
  return {vbslq_f32(vcltq_f32(a.q0, b.q0), t.q0, f.q0),
          vbslq_f32(vcltq_f32(a.q1, b.q1), t.q1, f.q1),
          vbslq_f32(vcltq_f32(a.q2, b.q2), t.q2, f.q2),
          vbslq_f32(vcltq_f32(a.q3, b.q3), t.q3, f.q3)};
}
// t in lanes from .. to - 1 of the register that starts at lane `at`.
inline float32x4_t select_lanes4(int at, int from, int to, float32x4_t t, float32x4_t f) {
  static const int32_t counted[4] = {0, 1, 2, 3};
  const int32x4_t lane = vaddq_s32(vld1q_s32(counted), vdupq_n_s32(at));
  const uint32x4_t inside =
      vandq_u32(vcgeq_s32(lane, vdupq_n_s32(from)), vcltq_s32(lane, vdupq_n_s32(to)));
  return vbslq_f32(inside, t, f);
}
inline Vec select_lanes(int from, int to, Vec t, Vec f) {
  return {select_lanes4(0, from, to, t.q0, f.q0), select_lanes4(4, from, to, t.q1, f.q1),
          select_lanes4(8, from, to, t.q2, f.q2), select_lanes4(12, from, to, t.q3, f.q3)};
}

inline IVec iadd(IVec a, IVec b) {
  return each<IVec>(a, b, [](int32x4_t x, int32x4_t y) { return vaddq_s32(x, y); });
}
inline IVec imax(IVec a, IVec b) {
  return each<IVec>(a, b, [](int32x4_t x, int32x4_t y) { return vmaxq_s32(x, y); });
}
inline IVec iand(IVec a, IVec b) {
  return each<IVec>(a, b, [](int32x4_t x, int32x4_t y) { return vandq_s32(x, y); });
}
template <int N>
inline IVec shift_left(IVec a) {
  return {vshlq_n_s32(a.q0, N), vshlq_n_s32(a.q1, N), vshlq_n_s32(a.q2, N), vshlq_n_s32(a.q3, N)};
}
template <int N>
inline IVec shift_right_signed(IVec a) {
  return {vshrq_n_s32(a.q0, N), vshrq_n_s32(a.q1, N), vshrq_n_s32(a.q2, N), vshrq_n_s32(a.q3, N)};
}
inline Vec to_float(IVec a) {
  return each<Vec>(a, [](int32x4_t x) { return vcvtq_f32_s32(x); });
}
// Nearest even whatever the control register says.
inline IVec round_to_int(Vec a) {
  return each<IVec>(a, [](float32x4_t x) { return vcvtnq_s32_f32(x); });
}

// The fold tree: 8+8, 4+4, 2+2, 1+1.
inline float fold_add(Vec a) {
  const float32x4_t s4 = vaddq_f32(vaddq_f32(a.q0, a.q2), vaddq_f32(a.q1, a.q3));
  const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
  return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
inline float fold_max(Vec a) {
  const float32x4_t m4 = max4(max4(a.q0, a.q2), max4(a.q1, a.q3));
  const float32x2_t low = vget_low_f32(m4), high = vget_high_f32(m4);
  const float32x2_t m2 = vbsl_f32(vcgt_f32(low, high), low, high);
  const float x = vget_lane_f32(m2, 0), y = vget_lane_f32(m2, 1);
  return x > y ? x : y;
}
inline int32_t fold_imax(IVec a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.q0, a.q2), vmaxq_s32(a.q1, a.q3)));
}
inline int32_t fold_iadd(IVec a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.q0, a.q2), vaddq_s32(a.q1, a.q3)));
}
inline float first_lane(Vec a) { return vgetq_lane_f32(a.q0, 0); }

inline float32x4_t widen_bf16(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
inline Vec load_bf16(const uint16_t* p) {
  const uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
  return {widen_bf16(vget_low_u16(low)), widen_bf16(vget_high_u16(low)),
          widen_bf16(vget_low_u16(high)), widen_bf16(vget_high_u16(high))};
}
inline Vec load_bf16_n(const uint16_t* p, int n) {
  uint16_t lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(uint16_t));
  return load_bf16(lanes);
}
inline Vec load_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return to_float({vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
                   vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))});
}
inline Vec load_i8_n(const int8_t* p, int n) {
  int8_t lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n));
  return load_i8(lanes);
}

// The high halves, rounded to nearest even; a NaN stays a (quiet) NaN.
inline uint16x4_t round_bf16(float32x4_t a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t high = vshrq_n_u32(bits, 16);
  const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
  const uint32x4_t rounded =
      vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
  const uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
  return vmovn_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet));
}
inline void store_bf16_n(uint16_t* p, Vec a, int n) {
  const uint16x8_t low = vcombine_u16(round_bf16(a.q0), round_bf16(a.q1));
  const uint16x8_t high = vcombine_u16(round_bf16(a.q2), round_bf16(a.q3));
  if (n == 16) {
    vst1q_u16(p, low);
    vst1q_u16(p + 8, high);
    return;
  }
  uint16_t lanes[16];
  vst1q_u16(lanes, low);
  vst1q_u16(lanes + 8, high);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(uint16_t));
}
// Lanes must be within -128 .. 127.
inline void store_i8_n(int8_t* p, IVec a, int n) {
  const int16x8_t low = vcombine_s16(vmovn_s32(a.q0), vmovn_s32(a.q1));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.q2), vmovn_s32(a.q3));
  const int8x16_t bytes = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
  if (n == 16) return vst1q_s8(p, bytes);
  int8_t lanes[16];
  vst1q_s8(lanes, bytes);
  std::memcpy(p, lanes, static_cast<size_t>(n));
}


// Four bytes a lane, as operands of dot4: 16-bit words, two registers for each of four lanes.
struct Words {
  int16x8_t low, high;
};
struct UnsignedQuads {
  Words q0, q1, q2, q3;
};
struct SignedQuads {
  Words q0, q1, q2, q3;
};
inline Words unsigned_words(int32x4_t a) {
  const uint8x16_t bytes = vreinterpretq_u8_s32(a);
  return {vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))),
          vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(bytes)))};
}
inline Words signed_words(int32x4_t a) {
  const int8x16_t bytes = vreinterpretq_s8_s32(a);
  return {vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))};
}
inline UnsignedQuads unsigned_quads(IVec a) {
  return {unsigned_words(a.q0), unsigned_words(a.q1), unsigned_words(a.q2), unsigned_words(a.q3)};
}
inline SignedQuads signed_quads(IVec a) {
  return {signed_words(a.q0), signed_words(a.q1), signed_words(a.q2), signed_words(a.q3)};
}
inline int32x4_t dot4x4(int32x4_t acc, Words u, Words s) {
  const int32x4_t lane0 = vmull_s16(vget_low_s16(u.low), vget_low_s16(s.low));
  const int32x4_t lane1 = vmull_s16(vget_high_s16(u.low), vget_high_s16(s.low));
  const int32x4_t lane2 = vmull_s16(vget_low_s16(u.high), vget_low_s16(s.high));
  const int32x4_t lane3 = vmull_s16(vget_high_s16(u.high), vget_high_s16(s.high));
  return vaddq_s32(acc, vpaddq_s32(vpaddq_s32(lane0, lane1), vpaddq_s32(lane2, lane3)));
}
// acc + the four products of each lane's bytes, exact.
inline IVec dot4(IVec acc, UnsignedQuads u, SignedQuads s) {
  return {dot4x4(acc.q0, u.q0, s.q0), dot4x4(acc.q1, u.q1, s.q1), dot4x4(acc.q2, u.q2, s.q2),
          dot4x4(acc.q3, u.q3, s.q3)};
}
// Lanes must be within 0 .. 255.
inline void store_u8(uint8_t* p, IVec a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(a.q0), vmovn_s32(a.q1));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.q2), vmovn_s32(a.q3));
  vst1q_u8(p, vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high))));
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
  vst1q_s32(p, a.q0);
  vst1q_s32(p + 4, a.q1);
  vst1q_s32(p + 8, a.q2);
  vst1q_s32(p + 12, a.q3);
}
inline int32_t sum16(const int8_t* p) { return vaddlvq_s8(vld1q_s8(p)); }

}  // namespace neon
}  // namespace octavo

#include "cpu/vec_folds.h"
