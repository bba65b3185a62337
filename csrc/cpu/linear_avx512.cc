// Matrix products with AVX-512 VNNI: one 512-bit register holds a quad of columns of a whole panel,
// the activation quad is broadcast from memory, and no shuffle or horizontal sum is ever needed.
#include "cpu/linear_avx512_tiles.h"
#include "cpu_isa.h"

namespace octavo {
namespace {

template <ScaleType S>
inline __m512 load_scales(const uint8_t* p) {
  if (S == ScaleType::kF32) return _mm512_loadu_ps(p);
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// 64 bytes of a panel as two 256-bit loads: a stream from memory arrives 2 to 6 % sooner than with
// 512-bit loads, which often straddle cache lines here (a block is not a multiple of 64 bytes).
inline __m512i load64(const uint8_t* p) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

template <Layout L>
inline void unpack(const uint8_t* payload, __m512i* w) {
  if (L == Layout::kQ8 || L == Layout::kQ8M) {
    for (int j = 0; j < 8; ++j) w[j] = load64(payload + 64 * j);
    return;
  }
  const __m512i low = _mm512_set1_epi8(0x0F);
  for (int j = 0; j < 4; ++j) {
    const __m512i both = load64(payload + 64 * j);
    w[j] = _mm512_and_si512(both, low);
    w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
}

// Rows whose dot products run side by side: one alone would wait 4 cycles for each of its 8 steps.
constexpr int kChains = 4;

// No software prefetch: a panel is one ascending stream, and the hardware prefetcher kept up as well
// or better at every distance tried (1 to 16 KiB, into L1 and L2).
template <Layout L, ScaleType S, int T>
void int8_tile(const TileArgs& t) {
  using Block = BlockShape<L, S>;
  const size_t k = static_cast<size_t>(t.acts->k);
  const size_t blocks = k / kQuantGroup;
  const size_t first = static_cast<size_t>(t.row) * blocks;
  const int8_t* q = t.acts->q + static_cast<size_t>(t.row) * k;
  const float* scale = t.acts->scale + first;
  const float* fsum = t.acts->fsum + first;
  const int32_t* isum = t.acts->isum + first;
  const uint8_t* panel = t.panel;
  __m512 acc[T];
  for (int i = 0; i < T; ++i) acc[i] = _mm512_setzero_ps();
  for (size_t b = 0; b < blocks; ++b, panel += Block::kBytes) {
    __m512i w[8];
    unpack<L>(panel, w);
    const __m512 d = load_scales<S>(panel + Block::kPayload);
    const __m512 min = Block::kMin ? load_scales<S>(panel + Block::kMinAt) : d;
    const int8_t* a = q + b * kQuantGroup;
    size_t at = b;
#pragma GCC unroll 16
    for (int row = 0; row < T; row += kChains) {
      const int chains = T - row < kChains ? T - row : kChains;
      __m512i dot[kChains];
      for (int c = 0; c < chains; ++c) dot[c] = _mm512_setzero_si512();
      for (int j = 0; j < 8; ++j) {
        for (int c = 0; c < chains; ++c) {
          dot[c] = _mm512_dpbusd_epi32(dot[c], w[j], broadcast4(a + c * k + 4 * j));
        }
      }
      for (int c = 0; c < chains; ++c, a += k, at += blocks) {
        if (!Block::kMin) {
          const __m512i row_sum = _mm512_set1_epi32(isum[at]);
          dot[c] = _mm512_sub_epi32(dot[c], _mm512_slli_epi32(row_sum, Block::kZeroShift));
        }
        const __m512 s = _mm512_mul_ps(d, _mm512_set1_ps(scale[at]));
        acc[row + c] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(dot[c]), acc[row + c]);
        if (Block::kMin) {
          acc[row + c] = _mm512_fmadd_ps(min, _mm512_set1_ps(fsum[at]), acc[row + c]);
        }
      }
    }
  }
  for (int i = 0; i < T; ++i) _mm512_storeu_ps(t.out + i * t.ldo, acc[i]);
}

// The same sums for two panels at once: a broadcast then feeds two products, and 2 T independent dot
// products run side by side. With one panel the load port, which takes one 512-bit broadcast a
// cycle, is as busy as the multipliers.
template <Layout L, ScaleType S, int T>
void int8_pair(const TileArgs& t) {
  using Block = BlockShape<L, S>;
  const size_t k = static_cast<size_t>(t.acts->k);
  const size_t blocks = k / kQuantGroup;
  size_t at = static_cast<size_t>(t.row) * blocks;
  const int8_t* a = t.acts->q + static_cast<size_t>(t.row) * k;
  const uint8_t* panels[2] = {t.panel, t.panel + t.matrix->panel_stride};
  const __m512i low = _mm512_set1_epi8(0x0F);
  __m512 acc[2][T];
  for (int i = 0; i < T; ++i) acc[0][i] = acc[1][i] = _mm512_setzero_ps();
  for (size_t b = 0; b < blocks; ++b, ++at, a += kQuantGroup) {
    __m512i dot[2][T];
    for (int i = 0; i < T; ++i) dot[0][i] = dot[1][i] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < (Block::kNibbles ? 4 : 8); ++j) {
      __m512i w[2], high[2];
      for (int p = 0; p < 2; ++p) {
        w[p] = _mm512_loadu_si512(panels[p] + 64 * j);
        if (!Block::kNibbles) continue;
        high[p] = _mm512_and_si512(_mm512_srli_epi16(w[p], 4), low);
        w[p] = _mm512_and_si512(w[p], low);
      }
#pragma GCC unroll 8
      for (int i = 0; i < T; ++i) {
        const __m512i x = broadcast4(a + i * k + 4 * j);
        dot[0][i] = _mm512_dpbusd_epi32(dot[0][i], w[0], x);
        dot[1][i] = _mm512_dpbusd_epi32(dot[1][i], w[1], x);
      }
      if (!Block::kNibbles) continue;
#pragma GCC unroll 8
      for (int i = 0; i < T; ++i) {
        const __m512i x = broadcast4(a + i * k + 16 + 4 * j);
        dot[0][i] = _mm512_dpbusd_epi32(dot[0][i], high[0], x);
        dot[1][i] = _mm512_dpbusd_epi32(dot[1][i], high[1], x);
      }
    }
    for (int p = 0; p < 2; ++p) {
      const __m512 d = load_scales<S>(panels[p] + Block::kPayload);
      const __m512 min = Block::kMin ? load_scales<S>(panels[p] + Block::kMinAt) : d;
      panels[p] += Block::kBytes;
#pragma GCC unroll 8
      for (int i = 0; i < T; ++i) {
        const size_t group = at + i * blocks;
        __m512i exact = dot[p][i];
        if (!Block::kMin) {
          const __m512i isum = _mm512_set1_epi32(t.acts->isum[group]);
          exact = _mm512_sub_epi32(exact, _mm512_slli_epi32(isum, Block::kZeroShift));
        }
        const __m512 s = _mm512_mul_ps(d, _mm512_set1_ps(t.acts->scale[group]));
        acc[p][i] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(exact), acc[p][i]);
        if (Block::kMin) {
          acc[p][i] = _mm512_fmadd_ps(min, _mm512_set1_ps(t.acts->fsum[group]), acc[p][i]);
        }
      }
    }
  }
  for (int i = 0; i < T; ++i) {
    for (int p = 0; p < 2; ++p) _mm512_storeu_ps(t.out + i * t.ldo + p * kLanes, acc[p][i]);
  }
}

// Rows of a pair tile: 12 dot products and 12 sums beside the weights.
constexpr int kPairTokens = 6;
// From this many rows on pairs are faster (7 % at 8 and 12 rows); below, the weights come from memory
// and one ascending stream reads them best.
constexpr int kPairsFrom = 8;

template <Layout L, ScaleType S>
TileFn int8_pair_for(int rows) {
  static constexpr TileFn table[] = {int8_pair<L, S, 1>, int8_pair<L, S, 2>, int8_pair<L, S, 3>,
                                     int8_pair<L, S, 4>, int8_pair<L, S, 5>, int8_pair<L, S, 6>};
  return table[rows - 1];
}

template <Layout L, ScaleType S>
TileFn int8_tile_for(int rows) {
  static constexpr TileFn table[] = {
      int8_tile<L, S, 1>,  int8_tile<L, S, 2>,  int8_tile<L, S, 3>,  int8_tile<L, S, 4>,
      int8_tile<L, S, 5>,  int8_tile<L, S, 6>,  int8_tile<L, S, 7>,  int8_tile<L, S, 8>,
      int8_tile<L, S, 9>,  int8_tile<L, S, 10>, int8_tile<L, S, 11>, int8_tile<L, S, 12>,
      int8_tile<L, S, 13>, int8_tile<L, S, 14>, int8_tile<L, S, 15>, int8_tile<L, S, 16>};
  return table[rows - 1];
}

template <Layout L, ScaleType S>
TileFn int8_function(int panels, int rows) {
  return panels == 2 ? int8_pair_for<L, S>(rows) : int8_tile_for<L, S>(rows);
}

TileFn int8_tile_of(const PackedMatrix& w, int panels, int rows) {
  const bool half = w.scale == ScaleType::kF16;
  switch (w.layout) {
    case Layout::kQ4:
      return half ? int8_function<Layout::kQ4, ScaleType::kF16>(panels, rows)
                  : int8_function<Layout::kQ4, ScaleType::kF32>(panels, rows);
    case Layout::kQ4M:
      return half ? int8_function<Layout::kQ4M, ScaleType::kF16>(panels, rows)
                  : int8_function<Layout::kQ4M, ScaleType::kF32>(panels, rows);
    case Layout::kQ8:
      return half ? int8_function<Layout::kQ8, ScaleType::kF16>(panels, rows)
                  : int8_function<Layout::kQ8, ScaleType::kF32>(panels, rows);
    default:
      return half ? int8_function<Layout::kQ8M, ScaleType::kF16>(panels, rows)
                  : int8_function<Layout::kQ8M, ScaleType::kF32>(panels, rows);
  }
}

void int8_product(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0,
                  int m, float* out, int64_t ldo) {
  for (int p = 0; p < panels;) {
    const int wide = m >= kPairsFrom && panels - p >= 2 ? 2 : 1;
    const int step = tile_rows(m, wide == 2 ? kPairTokens : kMaxTokens);
    for (int i = 0; i < m; i += step) {
      const int rows = m - i < step ? m - i : step;
      const TileArgs args = {&w, w.data + static_cast<size_t>(panel + p) * w.panel_stride, &acts,
                             row0 + i, out + i * ldo + p * kLanes, ldo};
      int8_tile_of(w, wide, rows)(args);
    }
    p += wide;
  }
}

void tile(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0, int m,
          float* out, int64_t ldo) {
  if (w.layout == Layout::kF32) {
    float_product<F32Op>(w, panel, panels, acts, row0, m, out, ldo);
  } else if (w.layout == Layout::kBF16) {
    float_product<WidenedBf16Op>(w, panel, panels, acts, row0, m, out, ldo);
  } else {
    int8_product(w, panel, panels, acts, row0, m, out, ldo);
  }
}

}  // namespace

const LinearKernels* linear_avx512() {
  static const LinearKernels table = {"avx512", tile};
  return cpu_has_avx512() ? &table : nullptr;
}

}  // namespace octavo
