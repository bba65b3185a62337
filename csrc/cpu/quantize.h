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

static inline IVec quantize16(Vec x, float scale) {
  if (scale == 0.0f) return iset1(0);
  const Vec q = max(div(x, set1(scale)), set1(-127.0f));
  return round_to_int(min(q, set1(127.0f)));
}

static inline float scale_of(IVec magnitudes) {
  return first_lane(as_float(iset1(fold_imax(magnitudes)))) / 127.0f;
}

// Rounds a scale (>= 0) up to 11 significant bits: its product with another such scale, or with a
// weight's f16 scale, is then exact in float32, and no quotient exceeds 127.
static inline float short_scale(float scale) {
  uint32_t bits;
  __builtin_memcpy(&bits, &scale, sizeof bits);
  if ((bits & 0x7f800000u) == 0x7f800000u) return scale;  // NaN and Inf carry on
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
  return short_scale(scale_of(magnitudes));
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
