// Scalar conversions between float32, float16 and bfloat16. `static inline` on purpose: each
// translation unit has its own ISA flags, and a shared inline would leak wide code into old CPUs.
#pragma once
#include <cstdint>
#include <cstring>

namespace octavo {

static inline float bits_to_f32(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t f32_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float bf16_to_f32(uint16_t value) {
  return bits_to_f32(static_cast<uint32_t>(value) << 16);
}

// Round to nearest even; a NaN stays a (quiet) NaN.
static inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = f32_to_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Round to nearest even, infinite from 65,520 on; a NaN stays a (quiet) NaN.
static inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = f32_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {
    // Below 2^-14: the sum's last bit is worth 2^-24, so the addition rounds to whole steps.
    const uint32_t steps = f32_to_bits(bits_to_f32(magnitude) + 0.5f) - f32_to_bits(0.5f);
    return static_cast<uint16_t>(sign | steps);
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

// Exact: every float16 is a float32. Subnormals are scaled by a multiplication that is exact too.
static inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 31) return bits_to_f32(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-08f;  // 2^-24
    return bits_to_f32(sign | f32_to_bits(magnitude));
  }
  return bits_to_f32(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace octavo
