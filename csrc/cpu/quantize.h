// Floats to int8, written once over Vec. Included by *_impl.h files after vec_math.h, like which it
// has no guard against another ISA's copy.
//
// Quantization of a group x: absmax = max |x| taken on the bit patterns (so a NaN wins and poisons
// the scale), scale = absmax / 127 rounded up to 11 significant bits (short_scale),
// q = rint(min(max(x / scale, -127), 127)), true divisions; scale = 0 (all zero, or too small for a
// float) gives q = 0. A NaN quotient becomes -127, and the scale carries the NaN on.
namespace octavo {
namespace OCTAVO_ISA {

// What the keys of an int8 cache are stored with added, so that they are the unsigned operand.
constexpr int kKeyZero = 128;

static inline IVec magnitude_bits(Vec x) { return iand(as_int(x), iset1(0x7fffffff)); }

// What a scale is divided by: for most scales (all but zero, NaN, Inf and the extremes, where a
// remainder or a reciprocal would be no normal float) a multiplication and its correction give the
// correctly rounded quotient. The correction's own error is below 2^-22 units in the last place,
// and no quotient by a scale of 11 significant bits is nearer than 2^-12 of them to a rounding
// boundary (Markstein, "Computation of elementary functions on the IBM RISC System/6000", 1990).
// Such a quotient is within -127 .. 127, because scales are rounded up.
struct Divisor {
  float scale, inverse;
  bool usual;
};

static inline bool usual_scale(float scale) { return scale >= 0x1p-96f && scale <= 0x1p+96f; }

static inline Divisor divisor_of(float scale) { return {scale, 1.0f / scale, usual_scale(scale)}; }

static inline IVec quantize16(Vec x, const Divisor& by) {
  const Vec scale = set1(by.scale);
  if (by.usual) {
    const Vec inverse = set1(by.inverse);
    const Vec q = mul(x, inverse);
    return round_to_int(fma(fma(neg(q), scale, x), inverse, q));
  }
  if (by.scale == 0.0f) return iset1(0);
  return round_to_int(min(max(div(x, scale), set1(-127.0f)), set1(127.0f)));
}

// Rounds scales (>= 0) up to 11 significant bits: the product with another such scale, or with a
// weight's f16 scale, is then exact in float32, and no quotient exceeds 127. Inf and NaN stay.
static inline Vec short_scales(Vec scale) {
  const IVec up = iadd(as_int(scale), iset1(0x1fff));
  const Vec rounded = as_float(iand(up, iset1(static_cast<int32_t>(0xffffe000u))));
  return select_lt(scale, set1(__builtin_inff()), rounded, scale);
}

// The same of one scale.
static inline float short_scale(float scale) {
  uint32_t bits;
  __builtin_memcpy(&bits, &scale, sizeof bits);
  if ((bits & 0x7f800000u) == 0x7f800000u) return scale;
  bits = (bits + 0x1fffu) & 0xffffe000u;
  __builtin_memcpy(&scale, &bits, sizeof bits);
  return scale;
}

// Of one head.
static inline float head_scale(const float* x, int dim) {
  IVec magnitudes = iset1(0);
  for (int i = 0; i < dim; i += 16) {
    magnitudes = imax(magnitudes, magnitude_bits(load_n(x + i, dim - i < 16 ? dim - i : 16)));
  }
  return short_scale(first_lane(as_float(iset1(fold_imax(magnitudes)))) / 127.0f);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
