// Folds of 16 rows, one row after the other: for ISAs with no better way. No include guard, like
// vec_math.h: included at the end of vec_math_<isa>.h.
namespace octavo {
namespace OCTAVO_ISA {

// Of 16 groups of 32 signed bytes: lane g of low = the sum of the first half of group g, of sum = that
// of the group.
inline void half_sums(const int8_t* bytes, IVec& low, IVec& sum) {
  int32_t lows[16], sums[16];
  for (int g = 0; g < 16; ++g) {
    lows[g] = sum16(bytes + 32 * g);
    sums[g] = lows[g] + sum16(bytes + 32 * g + 16);
  }
  low = load_i32(lows);
  sum = load_i32(sums);
}

// Lane r of the result is the maximum of the 16 lanes of row r, rows being 16 x 16 values.
inline IVec row_imax(const float* rows) {
  int32_t lanes[16];
  for (int r = 0; r < 16; ++r) lanes[r] = fold_imax(load_i32(rows + 16 * r));
  return load_i32(lanes);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
