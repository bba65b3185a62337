// AVX-512 tiles shared by linear_avx512.cc and linear_avx512bf16.cc. Everything is static: this file
// is only for translation units that are compiled with AVX-512 flags.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "cpu/linear_driver.h"

namespace octavo {
namespace {

// Activation rows of a register tile. Quantized: 8 unpacked weight vectors + 16 accumulators + d, m
// + 3 temporaries = 29 of 32 registers.
constexpr int kMaxTokens = 16;

inline __m512i broadcast4(const void* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return _mm512_set1_epi32(value);
}

// Float tiles. Op::step(acc, w, a) adds one 64-byte vector of weights (one column, or one column
// pair) times one 4-byte activation.
template <class Op, int P, int T>
void float_tile(const TileArgs& t) {
  const int k = t.acts->k;
  const int steps = k / Op::kColumns;
  const size_t stride = t.matrix->panel_stride;
  const size_t lda = static_cast<size_t>(k) * (4 / Op::kColumns);
  const uint8_t* a0 = Op::rows(*t.acts) + static_cast<size_t>(t.row) * lda;
  __m512 acc[P][T];
  for (int p = 0; p < P; ++p) {
    for (int i = 0; i < T; ++i) acc[p][i] = _mm512_setzero_ps();
  }
  for (int s = 0; s < steps; ++s) {
    __m512i w[P];
    for (int p = 0; p < P; ++p) w[p] = _mm512_loadu_si512(t.panel + p * stride + 64 * s);
    const uint8_t* a = a0 + 4 * static_cast<size_t>(s);
    for (int i = 0; i < T; ++i, a += lda) {
      const __m512i x = broadcast4(a);
      for (int p = 0; p < P; ++p) acc[p][i] = Op::step(acc[p][i], w[p], x);
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int i = 0; i < T; ++i) {
      _mm512_storeu_ps(t.out + i * t.ldo + p * kLanes, acc[p][i]);
    }
  }
}

struct F32Op {
  static constexpr int kColumns = 1;
  static constexpr int kFewRowPanels = 1;
  static const uint8_t* rows(const ActRows& a) { return reinterpret_cast<const uint8_t*>(a.f32); }
  static __m512 step(__m512 acc, __m512i w, __m512i x) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(x), acc);
  }
};

// bf16 without the instruction: widened, the same two fused steps as the generic code.
struct WidenedBf16Op {
  static constexpr int kColumns = 2;
  static constexpr int kFewRowPanels = 2;  // two dependent steps a vector: one sum would wait for them
  static const uint8_t* rows(const ActRows& a) { return reinterpret_cast<const uint8_t*>(a.bf16); }
  static __m512 step(__m512 acc, __m512i w, __m512i x) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    const __m512 w0 = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    const __m512 x0 = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    const __m512 w1 = _mm512_castsi512_ps(_mm512_and_si512(w, high));
    const __m512 x1 = _mm512_castsi512_ps(_mm512_and_si512(x, high));
    return _mm512_fmadd_ps(w1, x1, _mm512_fmadd_ps(w0, x0, acc));
  }
};

// Rows of a float tile of two panels: 16 accumulators, 98 % of the peak of vdpbf16ps.
constexpr int kFloatTokens = 8;
// Up to this many rows the weights come from memory: one ascending stream a thread reads 14 % faster
// than four side by side (two threads), though each sum then waits for itself.
constexpr int kFewRows = 4;

template <class Op, int P>
TileFn float_tile_for(int rows) {
  static constexpr TileFn table[] = {float_tile<Op, P, 1>, float_tile<Op, P, 2>,
                                     float_tile<Op, P, 3>, float_tile<Op, P, 4>,
                                     float_tile<Op, P, 5>, float_tile<Op, P, 6>,
                                     float_tile<Op, P, 7>, float_tile<Op, P, 8>};
  return table[rows - 1];
}

template <class Op>
void float_product(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0,
                   int m, float* out, int64_t ldo) {
  const int most = m <= kFewRows ? Op::kFewRowPanels : 2;
  run_tiles(
      w, panel, panels, acts, row0, m, out, ldo,
      [=](int left) { return TileShape{left < most ? left : most, kFloatTokens}; },
      [](int wide, int rows) {
        return wide == 2 ? float_tile_for<Op, 2>(rows) : float_tile_for<Op, 1>(rows);
      });
}

}  // namespace
}  // namespace octavo
