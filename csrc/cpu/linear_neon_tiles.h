// Matrix products with NEON: a quad of columns of a panel is four registers of 4 rows. Included by
// linear_neon.cc and linear_neondot.cc; each gets its own copy. With the dot-product extension one
// instruction multiplies 4 rows by a quad of activations, without it byte products are summed as
// 16-bit words first. Both are exact, so both give the generic code's bits.
//
// The instructions take signed bytes. Nibbles (0 .. 15) are signed bytes as they are; bytes have
// their top bit flipped, which subtracts 128: for w = d * (q - 128) that is the zero point already.
#pragma once
#include <arm_neon.h>

#include <cstring>

#include "cpu/linear_driver.h"

namespace octavo {
namespace {

constexpr int kRegisters = 4;  // of 4 rows each, in a vector of 16 rows
// Activation rows of a tile. Half a panel at a time, the integer sums of 4 rows (8 registers), the
// weights (4) and the activations (8) fit the 32 registers beside part of the float sums.
constexpr int kTokens = 4;
constexpr int kQuads = kQuantGroup / 4;

inline float32x4_t load_halves(const uint8_t* p, int r) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * r)));
}

// Scales or minima of 4 rows for a part of a block.
template <ScaleType S>
inline float32x4_t load_scales(const uint8_t* p, const uint8_t* header, int part, int r) {
  if (S == ScaleType::kF32) return vreinterpretq_f32_u8(vld1q_u8(p + 16 * r));
  if (!is_super(S)) return load_halves(p, r);
  uint32_t word;
  std::memcpy(&word, p + kLanes * part + 4 * r, sizeof(word));
  const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(word));
  const int32x4_t factors = vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
  return vmulq_f32(load_halves(header, r), vcvtq_f32_s32(factors));
}

#if defined(__ARM_FEATURE_DOTPROD)

// The sums of 4 rows in one block: int32 lanes all along.
struct RowSums {
  int32x4_t words = vdupq_n_s32(0);

  // Quad J of the block's 32 activations a.
  template <int J>
  inline void add(int8x16_t w, const int8x16_t* a) {
    words = vdotq_laneq_s32(words, w, a[J / 4], J % 4);
  }
  inline int32x4_t total() const { return words; }
};

struct Activations {
  int8x16_t bytes[2];
  explicit Activations(const int8_t* a) : bytes{vld1q_s8(a), vld1q_s8(a + 16)} {}
  const int8x16_t* operands() const { return bytes; }
};

#else

// The sums of 4 rows in one block. A 16-bit word holds two products of bytes, 2 * 128 * 127 =
// 32,512, so words go to the int32 lanes every second quad.
struct RowSums {
  int16x8_t low, high;  // rows 0, 1 and 2, 3: four words a row
  int32x4_t low_total = vdupq_n_s32(0), high_total = vdupq_n_s32(0);

  template <int J>
  inline void add(int8x16_t w, const int8_t* a) {
    int32_t quad;
    std::memcpy(&quad, a + 4 * J, sizeof(quad));
    const int8x8_t x = vreinterpret_s8_s32(vdup_n_s32(quad));
    if (J % 2 == 0) {
      low = vmull_s8(vget_low_s8(w), x);
      high = vmull_s8(vget_high_s8(w), x);
      return;
    }
    low_total = vpadalq_s16(low_total, vmlal_s8(low, vget_low_s8(w), x));
    high_total = vpadalq_s16(high_total, vmlal_s8(high, vget_high_s8(w), x));
  }
  inline int32x4_t total() const { return vpaddq_s32(low_total, high_total); }
};

struct Activations {
  const int8_t* bytes;
  explicit Activations(const int8_t* a) : bytes(a) {}
  const int8_t* operands() const { return bytes; }
};

#endif

// BITS of a byte from bit FROM, at bit TO.
template <int BITS, int FROM, int TO>
inline uint8x16_t move_bits(uint8x16_t v) {
  uint8x16_t moved = v;
  if constexpr (FROM > TO) moved = vshrq_n_u8(v, FROM - TO);
  if constexpr (FROM < TO) moved = vshlq_n_u8(v, TO - FROM);
  if constexpr (TO == 0 && FROM + BITS == 8) return moved;
  return vandq_u8(moved, vdupq_n_u8(((1 << BITS) - 1) << TO));
}

// Codes of quad J of 4 rows at `rows` in the payload, as signed bytes.
template <class Block, int J>
inline int8x16_t load_codes(const uint8_t* rows) {
  if constexpr (!Block::kNibbles && !Block::kPairs) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(rows + 64 * J), vdupq_n_u8(0x80)));
  }
  constexpr int kAbove = Block::kNibbles ? 4 : 0;
  uint8x16_t codes = vdupq_n_u8(0);
  if constexpr (Block::kNibbles) codes = move_bits<4, J / 4 * 4, 0>(vld1q_u8(rows + 64 * (J % 4)));
  if constexpr (Block::kPairs) {
    const uint8x16_t pairs = vld1q_u8(rows + Block::kPairsAt + 64 * (J / 4));
    codes = vorrq_u8(codes, move_bits<2, J % 4 * 2, kAbove>(pairs));
  }
  if constexpr (Block::kBits) {
    constexpr int kTo = Block::kPairs ? kAbove + 2 : kAbove;
    codes = vorrq_u8(codes, move_bits<1, J, kTo>(vld1q_u8(rows + Block::kBitsAt)));
  }
  return vreinterpretq_s8_u8(codes);
}

// Quad J of two registers of rows for T rows of activations.
template <class Block, int J, int T>
inline void add_quad(const uint8_t* payload, const Activations* a, RowSums (*sums)[2]) {
#pragma GCC unroll 2
  for (int r = 0; r < 2; ++r) {
    const int8x16_t w = load_codes<Block, J>(payload + 16 * r);
#pragma GCC unroll 4
    for (int i = 0; i < T; ++i) sums[i][r].template add<J>(w, a[i].operands());
  }
}

template <class Block, int PART, int T>
inline void block_dots(const uint8_t* payload, const Activations* a, RowSums (*sums)[2]) {
  static_assert(kQuads == 8, "unrolled by hand: lanes are constants of the instruction");
  if constexpr (PART == 0) {
    add_quad<Block, 0, T>(payload, a, sums);
    add_quad<Block, 1, T>(payload, a, sums);
    add_quad<Block, 2, T>(payload, a, sums);
    add_quad<Block, 3, T>(payload, a, sums);
  }
  if constexpr (PART == 1 || Block::kParts == 1) {
    add_quad<Block, 4, T>(payload, a, sums);
    add_quad<Block, 5, T>(payload, a, sums);
    add_quad<Block, 6, T>(payload, a, sums);
    add_quad<Block, 7, T>(payload, a, sums);
  }
}

// What is left to add, times isum, once the instruction's zero point (0, bytes 128) is granted.
template <class Block>
constexpr int zero_offset() {
  if (!Block::kNibbles && !Block::kPairs) return Block::kMin ? 128 : 0;
  return Block::kMin ? 0 : -(1 << Block::kZeroShift);
}

// Part PART of block b for one half of a panel: two registers of rows.
template <class Block, int PART, int T>
inline void add_part(const TileArgs& t, size_t b, int half, const Activations* operands,
                     float32x4_t (*acc)[kRegisters]) {
  constexpr ScaleType S = Block::kScale;
  constexpr int kOffset = zero_offset<Block>();
  const uint8_t* header = header_of<Block>(t.panel, b);
  const uint8_t* block = block_of<Block>(t.panel, b);
  const size_t blocks = static_cast<size_t>(t.acts->k) / kQuantGroup;
  const size_t at = static_cast<size_t>(t.row) * blocks + b;
  RowSums sums[T][2];
  block_dots<Block, PART, T>(block + 32 * half, operands, sums);
#pragma GCC unroll 2
  for (int r = 0; r < 2; ++r) {
    const int reg = 2 * half + r;
    const float32x4_t d = load_scales<S>(block + Block::kPayload, header, PART, reg);
    float32x4_t min = d;
    if (Block::kMin) min = load_scales<S>(block + Block::kMinAt, header + 2 * kLanes, PART, reg);
#pragma GCC unroll 4
    for (int i = 0; i < T; ++i) {
      const PartSums part(*t.acts, at + i * blocks, Block::kParts, PART);
      int32x4_t exact = sums[i][r].total();
      if (kOffset != 0) exact = vaddq_s32(exact, vdupq_n_s32(kOffset * part.isum));
      const float32x4_t s = vmulq_n_f32(d, part.scale);
      acc[i][reg] = vfmaq_f32(acc[i][reg], s, vcvtq_f32_s32(exact));
      if (Block::kMin) acc[i][reg] = vfmaq_n_f32(acc[i][reg], min, part.fsum);
    }
  }
}

template <class Block, int T>
void int8_tile(const TileArgs& t) {
  const size_t k = static_cast<size_t>(t.acts->k);
  const size_t blocks = k / kQuantGroup;
  const int8_t* a = t.acts->q + static_cast<size_t>(t.row) * k;
  float32x4_t acc[T][kRegisters];
  for (int i = 0; i < T; ++i) {
    for (int r = 0; r < kRegisters; ++r) acc[i][r] = vdupq_n_f32(0.0f);
  }
  for (size_t b = 0; b < blocks; ++b, a += kQuantGroup) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Activations operands[] = {Activations(a), Activations(a + (T > 1 ? 1 : 0) * k),
                                      Activations(a + (T > 2 ? 2 : 0) * k),
                                      Activations(a + (T > 3 ? 3 : 0) * k)};
      add_part<Block, 0, T>(t, b, half, operands, acc);
      if constexpr (Block::kParts == 2) add_part<Block, 1, T>(t, b, half, operands, acc);
    }
  }
  for (int i = 0; i < T; ++i) {
    for (int r = 0; r < kRegisters; ++r) vst1q_f32(t.out + i * t.ldo + 4 * r, acc[i][r]);
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

// Float tiles: Op::step(acc, w, a) adds one register of weights (one column of 4 rows, or a column
// pair) times one 4-byte activation. P panels run side by side to hide the latency of a lone
// multiply-add.
template <class Op, int P, int T>
void float_tile(const TileArgs& t) {
  const int k = t.acts->k;
  const int steps = k / Op::kColumns;
  const size_t stride = t.matrix->panel_stride;
  const size_t lda = static_cast<size_t>(k) * (4 / Op::kColumns);
  const uint8_t* a0 = Op::rows(*t.acts) + static_cast<size_t>(t.row) * lda;
  float32x4_t acc[P][T][kRegisters];
  for (int p = 0; p < P; ++p) {
    for (int i = 0; i < T; ++i) {
      for (int r = 0; r < kRegisters; ++r) acc[p][i][r] = vdupq_n_f32(0.0f);
    }
  }
  for (int s = 0; s < steps; ++s) {
    const uint8_t* a = a0 + 4 * static_cast<size_t>(s);
    uint32_t x[T];
    for (int i = 0; i < T; ++i) std::memcpy(&x[i], a + i * lda, 4);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const uint8_t* w = t.panel + p * stride + 64 * static_cast<size_t>(s);
#pragma GCC unroll 4
      for (int r = 0; r < kRegisters; ++r) {
        const uint32x4_t column = vreinterpretq_u32_u8(vld1q_u8(w + 16 * r));
#pragma GCC unroll 4
        for (int i = 0; i < T; ++i) acc[p][i][r] = Op::step(acc[p][i][r], column, x[i]);
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int i = 0; i < T; ++i) {
      float* out = t.out + i * t.ldo + p * kLanes;
      for (int r = 0; r < kRegisters; ++r) vst1q_f32(out + 4 * r, acc[p][i][r]);
    }
  }
}

struct F32Op {
  static constexpr int kColumns = 1;
  static const uint8_t* rows(const ActRows& a) { return reinterpret_cast<const uint8_t*>(a.f32); }
  static float32x4_t step(float32x4_t acc, uint32x4_t w, uint32_t x) {
    return vfmaq_f32(acc, vreinterpretq_f32_u32(w), vreinterpretq_f32_u32(vdupq_n_u32(x)));
  }
};

// Widened: the same two fused steps as the generic code.
struct Bf16Op {
  static constexpr int kColumns = 2;
  static const uint8_t* rows(const ActRows& a) { return reinterpret_cast<const uint8_t*>(a.bf16); }
  static float32x4_t step(float32x4_t acc, uint32x4_t w, uint32_t x) {
    const float32x4_t w0 = vreinterpretq_f32_u32(vshlq_n_u32(w, 16));
    const float32x4_t w1 = vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xFFFF0000u)));
    const float32x4_t x0 = vreinterpretq_f32_u32(vdupq_n_u32(x << 16));
    const float32x4_t x1 = vreinterpretq_f32_u32(vdupq_n_u32(x & 0xFFFF0000u));
    return vfmaq_f32(vfmaq_f32(acc, w0, x0), w1, x1);
  }
};

// Rows of a float tile: 4 panels x 1 row, 2 x 2 or 1 x 4: 16 accumulators.
template <class Op>
TileFn float_tile_of(int panels, int rows) {
  if (panels == 4) return float_tile<Op, 4, 1>;
  if (panels == 2) return rows == 1 ? float_tile<Op, 2, 1> : float_tile<Op, 2, 2>;
  static constexpr TileFn table[] = {float_tile<Op, 1, 1>, float_tile<Op, 1, 2>,
                                     float_tile<Op, 1, 3>, float_tile<Op, 1, 4>};
  return table[rows - 1];
}

constexpr int kHalfTokens = 3;  // two sums of 3 rows x 4 registers fill 24 of the 32 registers

// Halves times float activations: even columns and odd ones have a sum each.
template <int T>
void half_tile(const TileArgs& t) {
  const size_t k = static_cast<size_t>(t.acts->k);
  const float* x = t.acts->f32 + static_cast<size_t>(t.row) * k;
  float32x4_t even[T][kRegisters], odd[T][kRegisters];
  for (int i = 0; i < T; ++i) {
    for (int r = 0; r < kRegisters; ++r) even[i][r] = odd[i][r] = vdupq_n_f32(0.0f);
  }
  const uint8_t* panel = t.panel;
  for (const float* end = x + k; x < end; x += 2, panel += 64) {
    float32x2_t pair[T];
    for (int i = 0; i < T; ++i) pair[i] = vld1_f32(x + i * k);
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) {
      const float32x4_t w0 = load_halves(panel, r), w1 = load_halves(panel + 32, r);
#pragma GCC unroll 3
      for (int i = 0; i < T; ++i) {
        even[i][r] = vfmaq_lane_f32(even[i][r], w0, pair[i], 0);
        odd[i][r] = vfmaq_lane_f32(odd[i][r], w1, pair[i], 1);
      }
    }
  }
  for (int i = 0; i < T; ++i) {
    float* out = t.out + i * t.ldo;
    for (int r = 0; r < kRegisters; ++r) vst1q_f32(out + 4 * r, vaddq_f32(even[i][r], odd[i][r]));
  }
}

}  // namespace
}  // namespace octavo

#include "cpu/linear_narrow.h"
