// Matrix products with AVX-512 VNNI: one 512-bit register holds a quad of columns of a whole panel,
// the activation quad is broadcast from memory, and no shuffle or horizontal sum is ever needed.
#include "cpu/linear_avx512_tiles.h"
#include "cpu_isa.h"

namespace octavo {
namespace {

inline __m512 load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Scales or minima of a part of a block.
template <ScaleType S>
inline __m512 load_scales(const uint8_t* p, const uint8_t* header, int part) {
  if (S == ScaleType::kF32) return _mm512_loadu_ps(p);
  if (!is_super(S)) return load_halves(p);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + kLanes * part));
  return _mm512_mul_ps(load_halves(header), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

// 64 bytes of a panel as two 256-bit loads: a stream from memory arrives 2 to 6 % sooner than with
// 512-bit loads, which often straddle cache lines here (a block is not a multiple of 64 bytes).
inline __m512i load64(const uint8_t* p) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// `low`, and `bits` of a byte from bit `from` at bit `to` of it.
inline __m512i or_bits(__m512i low, __m512i v, int bits, int from, int to) {
  const __m512i moved =
      from >= to ? _mm512_srli_epi16(v, from - to) : _mm512_slli_epi16(v, to - from);
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(((1 << bits) - 1) << to));
  return _mm512_ternarylogic_epi32(low, moved, mask, 0xF8);  // low | (moved & mask)
}

// The codes of a block, quad by quad.
template <class Block>
inline void unpack(const uint8_t* payload, __m512i* w) {
  if (!Block::kNibbles && !Block::kPairs) {
    for (int j = 0; j < 8; ++j) w[j] = load64(payload + 64 * j);
    return;
  }
  if (Block::kNibbles) {
    const __m512i low = _mm512_set1_epi8(0x0F);
    for (int j = 0; j < 4; ++j) {
      const __m512i both = load64(payload + 64 * j);
      w[j] = _mm512_and_si512(both, low);
      w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
  } else {
    for (int j = 0; j < 8; ++j) w[j] = _mm512_setzero_si512();
  }
  constexpr int kAbove = Block::kNibbles ? 4 : 0;
  if (Block::kPairs) {
    const __m512i pairs[] = {load64(payload + Block::kPairsAt),
                             load64(payload + Block::kPairsAt + 64)};
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = or_bits(w[j], pairs[j / 4], 2, j % 4 * 2, kAbove);
  }
  if (Block::kBits) {
    const __m512i bits = load64(payload + Block::kBitsAt);
    constexpr int kTo = Block::kPairs ? kAbove + 2 : kAbove;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = or_bits(w[j], bits, 1, j, kTo);
  }
}

// Rows whose dot products run side by side: one alone would wait 4 cycles for each of its 8 steps.
constexpr int kChains = 4;

// The tiles' loops over `ahead` are written out: as a function they cost 3 % (other spills).
template <class Block, int T>
void int8_tile(const TileArgs& t) {
  constexpr ScaleType S = Block::kScale;
  constexpr int kQuads = 8 / Block::kParts;  // of a part
  const size_t k = static_cast<size_t>(t.acts->k);
  const size_t blocks = k / kQuantGroup;
  const size_t first = static_cast<size_t>(t.row) * blocks;
  const int8_t* q = t.acts->q + static_cast<size_t>(t.row) * k;
  __m512 acc[T];
  for (int i = 0; i < T; ++i) acc[i] = _mm512_setzero_ps();
  [[maybe_unused]] const uint8_t* ahead = t.ahead.at;
  for (size_t b = 0; b < blocks; ++b) {
    if constexpr (T >= kBlockPrefetchRows) {  // a loop that never runs can cost fewer rows 20 %
      for (int i = 0; i < t.ahead.lines; ++i, ahead += kCacheLine) __builtin_prefetch(ahead, 0, 2);
    }
    const uint8_t* header = header_of<Block>(t.panel, b);
    const uint8_t* block = block_of<Block>(t.panel, b);
    __m512i w[8];
    unpack<Block>(block, w);
    __m512 d[Block::kParts], min[Block::kParts];
    for (int part = 0; part < Block::kParts; ++part) {
      d[part] = load_scales<S>(block + Block::kPayload, header, part);
      min[part] = d[part];
      if (Block::kMin) min[part] = load_scales<S>(block + Block::kMinAt, header + 2 * kLanes, part);
    }
    const int8_t* a = q + b * kQuantGroup;
    size_t at = first + b;
#pragma GCC unroll 16
    for (int row = 0; row < T; row += kChains) {
      const int chains = T - row < kChains ? T - row : kChains;
#pragma GCC unroll 2
      for (int part = 0; part < Block::kParts; ++part) {
        __m512i dot[kChains];
        for (int c = 0; c < chains; ++c) dot[c] = _mm512_setzero_si512();
        for (int j = part * kQuads; j < (part + 1) * kQuads; ++j) {
          for (int c = 0; c < chains; ++c) {
            dot[c] = _mm512_dpbusd_epi32(dot[c], w[j], broadcast4(a + c * k + 4 * j));
          }
        }
        for (int c = 0; c < chains; ++c) {
          const PartSums sums(*t.acts, at + c * blocks, Block::kParts, part);
          if (!Block::kMin) {
            const __m512i row_sum = _mm512_set1_epi32(sums.isum);
            dot[c] = _mm512_sub_epi32(dot[c], _mm512_slli_epi32(row_sum, Block::kZeroShift));
          }
          const __m512 s = _mm512_mul_ps(d[part], _mm512_set1_ps(sums.scale));
          acc[row + c] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(dot[c]), acc[row + c]);
          if (Block::kMin) {
            acc[row + c] = _mm512_fmadd_ps(min[part], _mm512_set1_ps(sums.fsum), acc[row + c]);
          }
        }
      }
      a += chains * k;
      at += chains * blocks;
    }
  }
  for (int i = 0; i < T; ++i) _mm512_storeu_ps(t.out + i * t.ldo, acc[i]);
}

// The codes of one quad.
template <class Block>
inline __m512i load_codes(const uint8_t* payload, int j) {
  if (!Block::kNibbles && !Block::kPairs) return _mm512_loadu_si512(payload + 64 * j);
  __m512i w = _mm512_setzero_si512();
  if (Block::kNibbles) {
    const __m512i both = _mm512_loadu_si512(payload + 64 * (j % 4));
    w = _mm512_and_si512(j < 4 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(0x0F));
  }
  constexpr int kAbove = Block::kNibbles ? 4 : 0;
  if (Block::kPairs) {
    const __m512i pairs = _mm512_loadu_si512(payload + Block::kPairsAt + 64 * (j / 4));
    w = or_bits(w, pairs, 2, j % 4 * 2, kAbove);
  }
  if (Block::kBits) {
    const __m512i bits = _mm512_loadu_si512(payload + Block::kBitsAt);
    w = or_bits(w, bits, 1, j, Block::kPairs ? kAbove + 2 : kAbove);
  }
  return w;
}

// The same sums for two panels at once: a broadcast then feeds two products, and 2 T independent dot
// products run side by side. With one panel the load port, which takes one 512-bit broadcast a
// cycle, is as busy as the multipliers.
template <class Block, int T>
void int8_pair(const TileArgs& t) {
  constexpr ScaleType S = Block::kScale;
  const size_t k = static_cast<size_t>(t.acts->k);
  const size_t blocks = k / kQuantGroup;
  size_t at = static_cast<size_t>(t.row) * blocks;
  const int8_t* a = t.acts->q + static_cast<size_t>(t.row) * k;
  const uint8_t* panels[2] = {t.panel, t.panel + t.matrix->panel_stride};
  __m512 acc[2][T];
  for (int i = 0; i < T; ++i) acc[0][i] = acc[1][i] = _mm512_setzero_ps();
  const uint8_t* ahead = t.ahead.at;
  for (size_t b = 0; b < blocks; ++b, ++at, a += kQuantGroup) {
    for (int i = 0; i < t.ahead.lines; ++i, ahead += kCacheLine) __builtin_prefetch(ahead, 0, 2);
#pragma GCC unroll 2
    for (int part = 0; part < Block::kParts; ++part) {
      __m512i dot[2][T];
      for (int i = 0; i < T; ++i) dot[0][i] = dot[1][i] = _mm512_setzero_si512();
      constexpr int kQuads = 8 / Block::kParts;
#pragma GCC unroll 8
      for (int step = 0; step < kQuads; ++step) {
        // Both nibbles of a vector one after the other, where they are of one part.
        const int j = Block::kNibbles && Block::kParts == 1 ? step / 2 + step % 2 * 4
                                                            : part * kQuads + step;
        const __m512i w0 = load_codes<Block>(block_of<Block>(panels[0], b), j);
        const __m512i w1 = load_codes<Block>(block_of<Block>(panels[1], b), j);
#pragma GCC unroll 8
        for (int i = 0; i < T; ++i) {
          const __m512i x = broadcast4(a + i * k + 4 * j);
          dot[0][i] = _mm512_dpbusd_epi32(dot[0][i], w0, x);
          dot[1][i] = _mm512_dpbusd_epi32(dot[1][i], w1, x);
        }
      }
      for (int p = 0; p < 2; ++p) {
        const uint8_t* header = header_of<Block>(panels[p], b);
        const uint8_t* scales = block_of<Block>(panels[p], b) + Block::kPayload;
        const __m512 d = load_scales<S>(scales, header, part);
        const __m512 min =
            Block::kMin ? load_scales<S>(scales + scale_bytes(S), header + 2 * kLanes, part) : d;
#pragma GCC unroll 8
        for (int i = 0; i < T; ++i) {
          const PartSums sums(*t.acts, at + i * blocks, Block::kParts, part);
          __m512i exact = dot[p][i];
          if (!Block::kMin) {
            const __m512i isum = _mm512_set1_epi32(sums.isum);
            exact = _mm512_sub_epi32(exact, _mm512_slli_epi32(isum, Block::kZeroShift));
          }
          const __m512 s = _mm512_mul_ps(d, _mm512_set1_ps(sums.scale));
          acc[p][i] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(exact), acc[p][i]);
          if (Block::kMin) {
            acc[p][i] = _mm512_fmadd_ps(min, _mm512_set1_ps(sums.fsum), acc[p][i]);
          }
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
// From this many rows on, with the next panels asked for, pairs are as fast or faster (Q8_0, 6 rows,
// two threads: 1.2 times); below, the weights come from memory and one ascending stream reads them
// best.
constexpr int kPairsFrom = 4;

template <class Block>
TileFn int8_pair_for(int rows) {
  static constexpr TileFn table[] = {int8_pair<Block, 1>, int8_pair<Block, 2>,
                                     int8_pair<Block, 3>, int8_pair<Block, 4>,
                                     int8_pair<Block, 5>, int8_pair<Block, 6>};
  return table[rows - 1];
}

template <class Block>
TileFn int8_tile_for(int rows) {
  static constexpr TileFn table[] = {
      int8_tile<Block, 1>,  int8_tile<Block, 2>,  int8_tile<Block, 3>,  int8_tile<Block, 4>,
      int8_tile<Block, 5>,  int8_tile<Block, 6>,  int8_tile<Block, 7>,  int8_tile<Block, 8>,
      int8_tile<Block, 9>,  int8_tile<Block, 10>, int8_tile<Block, 11>, int8_tile<Block, 12>,
      int8_tile<Block, 13>, int8_tile<Block, 14>, int8_tile<Block, 15>, int8_tile<Block, 16>};
  return table[rows - 1];
}

TileFn int8_tile_of(const PackedMatrix& w, int panels, int rows) {
  return for_shape<TileFn>(w, [panels, rows](auto block) {
    using Block = decltype(block);
    return panels == 2 ? int8_pair_for<Block>(rows) : int8_tile_for<Block>(rows);
  });
}

void int8_product(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0,
                  int m, float* out, int64_t ldo) {
  run_tiles<true>(
      w, panel, panels, acts, row0, m, out, ldo,
      [=](int left) {
        return m >= kPairsFrom && left >= 2 ? TileShape{2, kPairTokens} : TileShape{1, kMaxTokens};
      },
      [&](int wide, int rows) { return int8_tile_of(w, wide, rows); });
}

// Halves times float activations: even columns and odd ones have a sum each. Weights are converted
// as they are loaded, so a tile has one panel and as many rows as registers allow: with 24 sums 1 x 12
// runs at 90 % of the float32 tiles' rate, 2 x 6, which converts twice as often, at 86 %.
constexpr int kHalfTokens = 12;

template <int T>
void half_tile(const TileArgs& t) {
  const size_t k = static_cast<size_t>(t.acts->k);
  const float* x = t.acts->f32 + static_cast<size_t>(t.row) * k;
  __m512 even[T], odd[T];
  for (int i = 0; i < T; ++i) even[i] = odd[i] = _mm512_setzero_ps();
  const uint8_t* panel = t.panel;
  for (const float* end = x + k; x < end; x += 2, panel += 64) {
    const __m512 w0 = load_halves(panel), w1 = load_halves(panel + 32);
#pragma GCC unroll 12
    for (int i = 0; i < T; ++i) {
      even[i] = _mm512_fmadd_ps(w0, _mm512_set1_ps(x[i * k]), even[i]);
      odd[i] = _mm512_fmadd_ps(w1, _mm512_set1_ps(x[i * k + 1]), odd[i]);
    }
  }
  for (int i = 0; i < T; ++i) _mm512_storeu_ps(t.out + i * t.ldo, _mm512_add_ps(even[i], odd[i]));
}

TileFn half_tile_of(int rows) {
  static constexpr TileFn table[] = {half_tile<1>, half_tile<2>,  half_tile<3>,  half_tile<4>,
                                     half_tile<5>, half_tile<6>,  half_tile<7>,  half_tile<8>,
                                     half_tile<9>, half_tile<10>, half_tile<11>, half_tile<12>};
  return table[rows - 1];
}

void half_product(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0,
                  int m, float* out, int64_t ldo) {
  run_tiles(
      w, panel, panels, acts, row0, m, out, ldo, [](int) { return TileShape{1, kHalfTokens}; },
      [](int, int rows) { return half_tile_of(rows); });
}

void tile(const PackedMatrix& w, int panel, int panels, const ActRows& acts, int row0, int m,
          float* out, int64_t ldo) {
  if (w.layout == Layout::kF32) {
    float_product<F32Op>(w, panel, panels, acts, row0, m, out, ldo);
  } else if (w.layout == Layout::kBF16) {
    float_product<WidenedBf16Op>(w, panel, panels, acts, row0, m, out, ldo);
  } else if (w.layout == Layout::kF16) {
    half_product(w, panel, panels, acts, row0, m, out, ldo);
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
