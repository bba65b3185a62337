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

template <Layout L>
inline void unpack(const uint8_t* payload, __m512i* w) {
  if (L == Layout::kQ8 || L == Layout::kQ8M) {
    for (int j = 0; j < 8; ++j) w[j] = _mm512_loadu_si512(payload + 64 * j);
    return;
  }
  const __m512i low = _mm512_set1_epi8(0x0F);
  for (int j = 0; j < 4; ++j) {
    const __m512i both = _mm512_loadu_si512(payload + 64 * j);
    w[j] = _mm512_and_si512(both, low);
    w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
}

// No software prefetch: a panel is one ascending stream, and the hardware prefetcher kept up as well
// or better at every distance tried (1 to 16 KiB, into L1 and L2).
template <Layout L, ScaleType S, int T>
void int8_tile(const TileArgs& t) {
  constexpr bool kNibbles = L == Layout::kQ4 || L == Layout::kQ4M;
  constexpr bool kMin = L == Layout::kQ4M || L == Layout::kQ8M;
  constexpr int kZeroShift = L == Layout::kQ4 ? 3 : 7;  // zero points 8 and 128
  constexpr size_t kPayload = kNibbles ? 256 : 512;
  constexpr size_t kScaleBytes = kLanes * (S == ScaleType::kF16 ? 2 : 4);
  constexpr size_t kBlock = kPayload + kScaleBytes * (kMin ? 2 : 1);
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
  for (size_t b = 0; b < blocks; ++b, panel += kBlock) {
    __m512i w[8];
    unpack<L>(panel, w);
    const __m512 d = load_scales<S>(panel + kPayload);
    const __m512 min = kMin ? load_scales<S>(panel + kPayload + kScaleBytes) : d;
    const int8_t* a = q + b * kQuantGroup;
    size_t at = b;
#pragma GCC unroll 16
    for (int i = 0; i < T; ++i, a += k, at += blocks) {
      __m512i dot = _mm512_setzero_si512();
      for (int j = 0; j < 8; ++j) dot = _mm512_dpbusd_epi32(dot, w[j], broadcast4(a + 4 * j));
      if (!kMin) {
        dot = _mm512_sub_epi32(dot, _mm512_slli_epi32(_mm512_set1_epi32(isum[at]), kZeroShift));
      }
      const __m512 s = _mm512_mul_ps(d, _mm512_set1_ps(scale[at]));
      acc[i] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(dot), acc[i]);
      if (kMin) acc[i] = _mm512_fmadd_ps(min, _mm512_set1_ps(fsum[at]), acc[i]);
    }
  }
  for (int i = 0; i < T; ++i) _mm512_storeu_ps(t.out + i * t.ldo, acc[i]);
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

TileFn int8_tile_of(const PackedMatrix& w, int rows) {
  const bool half = w.scale == ScaleType::kF16;
  switch (w.layout) {
    case Layout::kQ4:
      return int8_tile_for<Layout::kQ4, ScaleType::kF16>(rows);
    case Layout::kQ4M:
      return half ? int8_tile_for<Layout::kQ4M, ScaleType::kF16>(rows)
                  : int8_tile_for<Layout::kQ4M, ScaleType::kF32>(rows);
    case Layout::kQ8:
      return int8_tile_for<Layout::kQ8, ScaleType::kF16>(rows);
    default:
      return half ? int8_tile_for<Layout::kQ8M, ScaleType::kF16>(rows)
                  : int8_tile_for<Layout::kQ8M, ScaleType::kF32>(rows);
  }
}

void int8_product(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0,
                  int m, float* out, int64_t ldo) {
  const int step = tile_rows(m, kMaxTokens);
  for (int p = 0; p < panels; ++p) {
    for (int i = 0; i < m; i += step) {
      const int rows = m - i < step ? m - i : step;
      const TileArgs args = {&w, w.data + static_cast<size_t>(panel + p) * w.panel_stride, &acts,
                             row0 + i, out + i * ldo + p * kLanes, ldo};
      int8_tile_of(w, rows)(args);
    }
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
