// Which tile a product takes on ISAs of 128- and 256-bit registers, whose tiles have the same names and
// shapes. Included behind those tiles; everything is static.
namespace octavo {
namespace {

TileFn half_tile_of(int rows) {
  static constexpr TileFn table[] = {half_tile<1>, half_tile<2>, half_tile<3>};
  return table[rows - 1];
}

// Panels side by side for tiles of `step` rows, `left` panels to go.
int panels_at_once(int step, int left) {
  if (step == 1 && left >= 4) return 4;
  return step <= 2 && left >= 2 ? 2 : 1;
}

TileFn tile_function(const PackedMatrix& w, int panels, int rows) {
  if (w.layout == Layout::kF32) return float_tile_of<F32Op>(panels, rows);
  if (w.layout == Layout::kBF16) return float_tile_of<Bf16Op>(panels, rows);
  if (w.layout == Layout::kF16) return half_tile_of(rows);
  return int8_tile_of(w, rows);
}

void tile(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0, int m,
          float* out, int64_t ldo) {
  const bool floats = w.layout == Layout::kF32 || w.layout == Layout::kBF16;
  const int most = w.layout == Layout::kF16 ? kHalfTokens : kTokens;
  const int step = even_rows(m, most);
  run_tiles(
      w, panel, panels, acts, row0, m, out, ldo,
      [=](int left) { return TileShape{floats ? panels_at_once(step, left) : 1, most}; },
      [&](int wide, int rows) { return tile_function(w, wide, rows); });
}

}  // namespace
}  // namespace octavo
