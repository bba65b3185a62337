// bf16 products by vdpbf16ps; every other layout is AVX-512's.
#include "cpu/linear_avx512_tiles.h"
#include "cpu_isa.h"

namespace octavo {
namespace {

// One accumulator an output, column pairs ascending: the result does not depend on the tile.
struct Bf16Op {
  static constexpr int kColumns = 2;
  static constexpr int kFewRowPanels = 1;
  static const uint8_t* rows(const ActRows& a) { return reinterpret_cast<const uint8_t*>(a.bf16); }
  static __m512 step(__m512 acc, __m512i w, __m512i x) {
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
  }
};

void tile(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0, int m,
          float* out, int64_t ldo) {
  if (w.layout != Layout::kBF16) {
    linear_avx512()->tile(w, panel, panels, acts, row0, m, out, ldo);
    return;
  }
  float_product<Bf16Op>(w, panel, panels, acts, row0, m, out, ldo);
}

}  // namespace

const LinearKernels* linear_avx512bf16() {
  static const LinearKernels table = {"avx512bf16", tile};
  return cpu_has_avx512bf16() && linear_avx512() ? &table : nullptr;
}

}  // namespace octavo
