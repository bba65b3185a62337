// Matrix products with AVX2: a quad of columns of a panel is two registers of 8 rows; the activation
// quad is broadcast from memory. Without the VNNI instruction, byte products are summed as 16-bit
// words by vpmaddubsw, which is exact here: weights enter as nibbles, so a word sums at most
// 16 products of 15 * 127 = 30,480 in a block of 32 columns.
#include <immintrin.h>

#include <cstring>

#include "cpu_isa.h"
#include "cpu/linear_driver.h"

namespace octavo {
namespace {

constexpr int kHalf = 8;  // rows of a register
// Activation rows of a quantized tile. The word sums of 4 rows (Q4: x 2 registers of 8 rows, Q8:
// x low and high nibbles) beside the unpacked weights fill the 16 registers; the float sums stay in
// L1 between blocks.
constexpr int kTokens = 4;
// Columns of a block, in quads.
constexpr int kQuads = kQuantGroup / 4;

inline __m256i load_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

inline __m256i broadcast4(const void* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return _mm256_set1_epi32(value);
}

inline __m256 load_halves(const uint8_t* p, int half) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + half));
}

// Scales or minima of 8 rows for a part of a block.
template <ScaleType S>
inline __m256 load_scales(const uint8_t* p, const uint8_t* header, int part, int half) {
  if (S == ScaleType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p) + kHalf * half);
  }
  if (!is_super(S)) return load_halves(p, half);
  const uint8_t* factors = p + kLanes * part + kHalf * half;
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(factors));
  return _mm256_mul_ps(load_halves(header, half), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
}

inline __m256i sum_words(__m256i words, int factor) {
  return _mm256_madd_epi16(words, _mm256_set1_epi16(static_cast<int16_t>(factor)));
}

// Exact dot products of one block with T rows of activations (k bytes apart), stored codes.
template <int T>
inline void nibble_dots(const uint8_t* payload, const int8_t* a, size_t k, __m256i (*dot)[2]) {
  const __m256i low_bits = _mm256_set1_epi8(0x0F);
  __m256i sum[T][2];
  for (int j = 0; j < kQuads / 2; ++j) {
    const __m256i both0 = load_bytes(payload + 64 * j);
    const __m256i both1 = load_bytes(payload + 64 * j + 32);
    const __m256i low0 = _mm256_and_si256(both0, low_bits);
    const __m256i low1 = _mm256_and_si256(both1, low_bits);
    const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(both0, 4), low_bits);
    const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(both1, 4), low_bits);
#pragma GCC unroll 4
    for (int i = 0; i < T; ++i) {
      const __m256i a_low = broadcast4(a + i * k + 4 * j);
      const __m256i a_high = broadcast4(a + i * k + 16 + 4 * j);
      const __m256i p0 = _mm256_maddubs_epi16(low0, a_low);
      const __m256i p1 = _mm256_maddubs_epi16(low1, a_low);
      sum[i][0] = j == 0 ? p0 : _mm256_add_epi16(sum[i][0], p0);
      sum[i][1] = j == 0 ? p1 : _mm256_add_epi16(sum[i][1], p1);
      sum[i][0] = _mm256_add_epi16(sum[i][0], _mm256_maddubs_epi16(high0, a_high));
      sum[i][1] = _mm256_add_epi16(sum[i][1], _mm256_maddubs_epi16(high1, a_high));
    }
  }
  for (int i = 0; i < T; ++i) {
    for (int h = 0; h < 2; ++h) dot[i][h] = sum_words(sum[i][h], 1);
  }
}

// A byte is 16 * its high nibble + its low one; each is summed on its own. Half a panel at a time.
template <int T>
inline void byte_dots(const uint8_t* payload, const int8_t* a, size_t k, __m256i (*dot)[2]) {
  const __m256i low_bits = _mm256_set1_epi8(0x0F);
  for (int h = 0; h < 2; ++h) {
    __m256i low_sum[T], high_sum[T];
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) {
      const __m256i w = load_bytes(payload + 64 * j + 32 * h);
      const __m256i low = _mm256_and_si256(w, low_bits);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), low_bits);
#pragma GCC unroll 4
      for (int i = 0; i < T; ++i) {
        const __m256i x = broadcast4(a + i * k + 4 * j);
        const __m256i p = _mm256_maddubs_epi16(low, x);
        const __m256i q = _mm256_maddubs_epi16(high, x);
        low_sum[i] = j == 0 ? p : _mm256_add_epi16(low_sum[i], p);
        high_sum[i] = j == 0 ? q : _mm256_add_epi16(high_sum[i], q);
      }
    }
    for (int i = 0; i < T; ++i) {
      dot[i][h] = _mm256_add_epi32(sum_words(low_sum[i], 1), sum_words(high_sum[i], 16));
    }
  }
}

// `bits` of a byte from bit `from`, at bit `to`.
inline __m256i move_bits(__m256i v, int bits, int from, int to) {
  const __m256i moved =
      from >= to ? _mm256_srli_epi16(v, from - to) : _mm256_slli_epi16(v, to - from);
  return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(((1 << bits) - 1) << to)));
}

// Codes of quad j, put together from their planes, 8 rows.
template <class Block>
inline __m256i load_codes(const uint8_t* payload, int j, int half) {
  const uint8_t* rows = payload + 32 * half;
  constexpr int kAbove = Block::kNibbles ? 4 : 0;
  __m256i codes = _mm256_setzero_si256();
  if (Block::kNibbles) codes = move_bits(load_bytes(rows + j % 4 * 64), 4, j / 4 * 4, 0);
  if (Block::kPairs) {
    const __m256i pairs = load_bytes(rows + Block::kPairsAt + j / 4 * 64);
    codes = _mm256_or_si256(codes, move_bits(pairs, 2, j % 4 * 2, kAbove));
  }
  if (Block::kBits) {
    const __m256i bits = load_bytes(rows + Block::kBitsAt);
    codes = _mm256_or_si256(codes, move_bits(bits, 1, j, Block::kPairs ? kAbove + 2 : kAbove));
  }
  return codes;
}

// Codes of up to 6 bits, one part of a block. A word sums 4 quads of codes below 32, or 2 below 64.
template <class Block, int T>
inline void plane_dots(const uint8_t* payload, const int8_t* a, size_t k, int part,
                       __m256i (*dot)[2]) {
  constexpr int kTogether = Block::kNibbles && Block::kPairs ? 2 : 4;
  constexpr int kOfPart = kQuads / Block::kParts;
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < T; ++i) dot[i][h] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int from = 0; from < kOfPart; from += kTogether) {
      __m256i sum[T];
#pragma GCC unroll 8
      for (int s = 0; s < kTogether; ++s) {
        const int j = part * kOfPart + from + s;
        const __m256i w = load_codes<Block>(payload, j, h);
#pragma GCC unroll 4
        for (int i = 0; i < T; ++i) {
          const __m256i p = _mm256_maddubs_epi16(w, broadcast4(a + i * k + 4 * j));
          sum[i] = s == 0 ? p : _mm256_add_epi16(sum[i], p);
        }
      }
      for (int i = 0; i < T; ++i) dot[i][h] = _mm256_add_epi32(dot[i][h], sum_words(sum[i], 1));
    }
  }
}

template <class Block, int T>
inline void block_dots(const uint8_t* payload, const int8_t* a, size_t k, int part,
                       __m256i (*dot)[2]) {
  if (!Block::kNibbles && !Block::kPairs) return byte_dots<T>(payload, a, k, dot);
  if (Block::kNibbles && !Block::kPairs && !Block::kBits) {
    return nibble_dots<T>(payload, a, k, dot);
  }
  plane_dots<Block, T>(payload, a, k, part, dot);
}

template <class Block, int T>
void int8_tile(const TileArgs& t) {
  constexpr ScaleType S = Block::kScale;
  const size_t k = static_cast<size_t>(t.acts->k);
  const size_t blocks = k / kQuantGroup;
  const size_t first = static_cast<size_t>(t.row) * blocks;
  const int8_t* a = t.acts->q + static_cast<size_t>(t.row) * k;
  __m256 acc[T][2];
  for (int i = 0; i < T; ++i) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
  for (size_t b = 0; b < blocks; ++b, a += kQuantGroup) {
    const uint8_t* header = header_of<Block>(t.panel, b);
    const uint8_t* block = block_of<Block>(t.panel, b);
#pragma GCC unroll 2
    for (int part = 0; part < Block::kParts; ++part) {
      __m256i dot[T][2];
      block_dots<Block, T>(block, a, k, part, dot);
      for (int h = 0; h < 2; ++h) {
        const __m256 d = load_scales<S>(block + Block::kPayload, header, part, h);
        const __m256 min =
            Block::kMin ? load_scales<S>(block + Block::kMinAt, header + 2 * kLanes, part, h) : d;
#pragma GCC unroll 4
        for (int i = 0; i < T; ++i) {
          const PartSums sums(*t.acts, first + i * blocks + b, Block::kParts, part);
          __m256i exact = dot[i][h];
          if (!Block::kMin) {
            const __m256i isum = _mm256_set1_epi32(sums.isum);
            exact = _mm256_sub_epi32(exact, _mm256_slli_epi32(isum, Block::kZeroShift));
          }
          const __m256 s = _mm256_mul_ps(d, _mm256_set1_ps(sums.scale));
          acc[i][h] = _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(exact), acc[i][h]);
          if (Block::kMin) acc[i][h] = _mm256_fmadd_ps(min, _mm256_set1_ps(sums.fsum), acc[i][h]);
        }
      }
    }
  }
  for (int i = 0; i < T; ++i) {
    for (int h = 0; h < 2; ++h) _mm256_storeu_ps(t.out + i * t.ldo + kHalf * h, acc[i][h]);
  }
}

template <class Block>
TileFn int8_tile_for(int rows) {
  static constexpr TileFn table[] = {int8_tile<Block, 1>, int8_tile<Block, 2>,
                                     int8_tile<Block, 3>, int8_tile<Block, 4>};
  return table[rows - 1];
}

TileFn int8_tile_of(const PackedMatrix& w, int rows) {
  return for_shape<TileFn>(w, [rows](auto block) { return int8_tile_for<decltype(block)>(rows); });
}

// Float tiles: Op::step(acc, w, a) adds one 32-byte vector of weights (one column of 8 rows, or a
// column pair) times one 4-byte activation. P panels run side by side to hide the latency of a
// lone multiply-add.
template <class Op, int P, int T>
void float_tile(const TileArgs& t) {
  const int k = t.acts->k;
  const int steps = k / Op::kColumns;
  const size_t stride = t.matrix->panel_stride;
  const size_t lda = static_cast<size_t>(k) * (4 / Op::kColumns);
  const uint8_t* a0 = Op::rows(*t.acts) + static_cast<size_t>(t.row) * lda;
  __m256 acc[P][T][2];
  for (int p = 0; p < P; ++p) {
    for (int i = 0; i < T; ++i) acc[p][i][0] = acc[p][i][1] = _mm256_setzero_ps();
  }
  for (int s = 0; s < steps; ++s) {
    const uint8_t* a = a0 + 4 * static_cast<size_t>(s);
    for (int p = 0; p < P; ++p) {
      const __m256i w0 = load_bytes(t.panel + p * stride + 64 * s);
      const __m256i w1 = load_bytes(t.panel + p * stride + 64 * s + 32);
      for (int i = 0; i < T; ++i) {
        const __m256i x = broadcast4(a + i * lda);
        acc[p][i][0] = Op::step(acc[p][i][0], w0, x);
        acc[p][i][1] = Op::step(acc[p][i][1], w1, x);
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int i = 0; i < T; ++i) {
      float* out = t.out + i * t.ldo + p * kLanes;
      _mm256_storeu_ps(out, acc[p][i][0]);
      _mm256_storeu_ps(out + kHalf, acc[p][i][1]);
    }
  }
}

struct F32Op {
  static constexpr int kColumns = 1;
  static const uint8_t* rows(const ActRows& a) { return reinterpret_cast<const uint8_t*>(a.f32); }
  static __m256 step(__m256 acc, __m256i w, __m256i x) {
    return _mm256_fmadd_ps(_mm256_castsi256_ps(w), _mm256_castsi256_ps(x), acc);
  }
};

// Widened: the same two fused steps as the generic code.
struct Bf16Op {
  static constexpr int kColumns = 2;
  static const uint8_t* rows(const ActRows& a) { return reinterpret_cast<const uint8_t*>(a.bf16); }
  static __m256 step(__m256 acc, __m256i w, __m256i x) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    const __m256 w0 = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    const __m256 x0 = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    const __m256 w1 = _mm256_castsi256_ps(_mm256_and_si256(w, high));
    const __m256 x1 = _mm256_castsi256_ps(_mm256_and_si256(x, high));
    return _mm256_fmadd_ps(w1, x1, _mm256_fmadd_ps(w0, x0, acc));
  }
};

// Rows of a float tile: 4 panels x 1 row, 2 x 2 or 1 x 4: 8 accumulators.
template <class Op>
TileFn float_tile_of(int panels, int rows) {
  if (panels == 4) return float_tile<Op, 4, 1>;
  if (panels == 2) return rows == 1 ? float_tile<Op, 2, 1> : float_tile<Op, 2, 2>;
  static constexpr TileFn table[] = {float_tile<Op, 1, 1>, float_tile<Op, 1, 2>,
                                     float_tile<Op, 1, 3>, float_tile<Op, 1, 4>};
  return table[rows - 1];
}

constexpr int kHalfTokens = 3;  // two sums of 3 rows x 2 registers fill 12 of the 16 registers

// Halves times float activations: even columns and odd ones have a sum each.
template <int T>
void half_tile(const TileArgs& t) {
  const size_t k = static_cast<size_t>(t.acts->k);
  const float* x = t.acts->f32 + static_cast<size_t>(t.row) * k;
  __m256 even[T][2], odd[T][2];
  for (int i = 0; i < T; ++i) {
    for (int h = 0; h < 2; ++h) even[i][h] = odd[i][h] = _mm256_setzero_ps();
  }
  const uint8_t* panel = t.panel;
  for (const float* end = x + k; x < end; x += 2, panel += 64) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m256 w0 = load_halves(panel, h), w1 = load_halves(panel + 32, h);
#pragma GCC unroll 3
      for (int i = 0; i < T; ++i) {
        even[i][h] = _mm256_fmadd_ps(w0, _mm256_set1_ps(x[i * k]), even[i][h]);
        odd[i][h] = _mm256_fmadd_ps(w1, _mm256_set1_ps(x[i * k + 1]), odd[i][h]);
      }
    }
  }
  for (int i = 0; i < T; ++i) {
    for (int h = 0; h < 2; ++h) {
      _mm256_storeu_ps(t.out + i * t.ldo + kHalf * h, _mm256_add_ps(even[i][h], odd[i][h]));
    }
  }
}

}  // namespace
}  // namespace octavo

#include "cpu/linear_narrow.h"

namespace octavo {

const LinearKernels* linear_avx2() {
  static const LinearKernels table = {"avx2", tile};
  return cpu_has_avx2() ? &table : nullptr;
}

}  // namespace octavo
