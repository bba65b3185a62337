// Vector functions over 16 lanes, written once for every ISA.
//
// No include guard: a kernel file defines OCTAVO_ISA (the ISA's namespace), includes that ISA's
// vec_math_<isa>.h and then this file, so each ISA gets its own copy under its own flags.
namespace octavo {
namespace OCTAVO_ISA {

// exp for -87 <= x <= 87, within 0.9 ulp; NaN stays NaN.
// x = n ln2 + r with n = rint(x log2 e) by the 1.5 * 2^23 trick (n, with the exponent's bias added,
// sits in the low mantissa bits), ln2 split in two floats; exp(r) = 1 + r + r^2 q(r), q of degree 4
// fitted to the least relative error on |r| <= ln2 / 2; then the exponent is n.
inline Vec exp_in_range(Vec x) {
  const Vec magic = set1(12582912.0f + 127.0f);
  const Vec t = fma(x, set1(0x1.715476p+0f), magic);
  const Vec n = sub(t, magic);
  Vec r = fma(n, set1(-0x1.62e430p-1f), x);
  r = fma(n, set1(0x1.05c610p-29f), r);
  Vec p = set1(0x1.6a23ccp-10f);
  p = fma(p, r, set1(0x1.123a20p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return mul(p, as_float(shift_left<23>(as_int(t))));
}

// exp for x clamped to [-87, 87].
inline Vec exp_clamped(Vec x) { return exp_in_range(min(set1(87.0f), max(set1(-87.0f), x))); }

// exp for x <= 0: 0 below -87.
inline Vec exp_nonpositive(Vec x) {
  return select_lt(x, set1(-87.0f), set1(0.0f), exp_in_range(x));
}

// tanh(y) = sign(y) (1 - e) / (1 + e), e = exp(-2 |y|). Absolute error about 1e-7.
inline Vec tanh(Vec y) {
  const Vec e = exp_nonpositive(mul(abs(y), set1(-2.0f)));
  return copy_sign(div(sub(set1(1.0f), e), add(set1(1.0f), e)), y);
}

// x / (1 + exp(-x))
inline Vec silu(Vec x) { return div(x, add(set1(1.0f), exp_clamped(neg(x)))); }

}  // namespace OCTAVO_ISA
}  // namespace octavo
