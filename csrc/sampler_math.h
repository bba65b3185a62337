// Own exp and log in double, and softmax weights as integers: no math library, so that the sampler
// gives the same bits on every machine. `static inline`: private to the files that include it.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo {

static inline double bits_to_double(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, 8);
  return x;
}

static inline uint64_t double_to_bits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  return bits;
}

// exp(x) for -700 <= x <= 0, about 1 ulp: x = n ln2 + r, Taylor series of degree 13 on
// |r| <= ln2 / 2 (next term below 2^-57).
static inline double exp_double(double x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: the sum's low bits hold rint
  const double t = std::fma(x, 1.4426950408889634, kMagic);
  const double n = t - kMagic;
  double r = std::fma(n, -0x1.62e42fefa39efp-1, x);
  r = std::fma(n, -0x1.abc9e3b39803fp-56, r);
  double p = 1.0 / 6227020800.0;
  p = std::fma(p, r, 1.0 / 479001600.0);
  p = std::fma(p, r, 1.0 / 39916800.0);
  p = std::fma(p, r, 1.0 / 3628800.0);
  p = std::fma(p, r, 1.0 / 362880.0);
  p = std::fma(p, r, 1.0 / 40320.0);
  p = std::fma(p, r, 1.0 / 5040.0);
  p = std::fma(p, r, 1.0 / 720.0);
  p = std::fma(p, r, 1.0 / 120.0);
  p = std::fma(p, r, 1.0 / 24.0);
  p = std::fma(p, r, 1.0 / 6.0);
  p = std::fma(p, r, 0.5);
  p = std::fma(p, r, 1.0);
  p = std::fma(p, r, 1.0);
  return p * bits_to_double((double_to_bits(t) + 1023) << 52);
}

// log(x) for normal x > 0, about 1 ulp: x = m 2^e with m in [sqrt(1/2), sqrt(2)), s = (m-1)/(m+1),
// log m = 2 (s + s^3/3 + s^5/5 + ...) up to s^23 (|s| < 0.172).
static inline double log_double(double x) {
  uint64_t bits = double_to_bits(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = bits_to_double((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 1.0 / 23.0;
  for (int k = 21; k >= 3; k -= 2) p = std::fma(p, z, 1.0 / k);
  const double tail = 2.0 * s * z * p;
  const double e = static_cast<double>(exponent);
  // 2 s is the exact head only up to its rounding; e = 0 wherever the result is small.
  return std::fma(e, 0x1.62e42fefa39efp-1, std::fma(e, 0x1.abc9e3b39803fp-56, 2.0 * s + tail));
}

// Softmax weights in units of 2^-40: integers, so that every sum of them is exact in any order.
constexpr double kWeightOne = 1099511627776.0;  // 2^40
// Below this exp(y) is under half a unit.
constexpr float kWeightFloor = -29.0f;

// rint(2^40 exp(y)) for -29 <= y <= 0
static inline uint64_t weight_in_range(float y) {
  constexpr double kTwo52 = 4503599627370496.0;
  const double e = exp_double(static_cast<double>(y));
  return double_to_bits(std::fma(e, kWeightOne, kTwo52)) - double_to_bits(kTwo52);
}

static inline float weight_clamp(float y) { return y > kWeightFloor ? y : kWeightFloor; }

// rint(2^40 exp(y)) for y <= 0; 0 for y <= -29 (where it rounds to 0 anyway) and for NaN.
static inline uint64_t softmax_weight(float y) { return weight_in_range(weight_clamp(y)); }

// The same for n values; the two loops apart, so that the compiler makes vector code of each.
template <int N>
static inline void softmax_weights(const float* y, uint64_t* weight) {
  float clamped[N];
  for (int i = 0; i < N; ++i) clamped[i] = weight_clamp(y[i]);
  for (int i = 0; i < N; ++i) weight[i] = weight_in_range(clamped[i]);
}

// Gumbel noise of a 32-bit word: u = (word + 0.5) 2^-32, -log(-log(u)); between -3.1 and 22.9.
static inline double gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -log_double(-log_double(u));
}
constexpr double kGumbelMax = 22.9;

}  // namespace octavo
