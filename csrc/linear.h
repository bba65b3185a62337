// Packed weights and the matrix products over them.
//
// A packed matrix is a run of panels of 16 output rows: row = lane, so no product ever needs a
// horizontal sum, and the sum of one output runs over K ascending on every ISA and for every number
// of activation rows. Bit rules (the oracle is linear_generic.cc at one activation row):
//   I8 activations, quantized weights, for each scaled group of columns ascending (32 columns, or 16
//   where the scales say so):
//     dot = sum of (stored - zero point) * q, an exact int32;  t = d * scale (one rounding);
//     acc = fma(t, float(dot), acc);  with a minimum: acc = fma(m, fsum, acc)
//   scale is the activations' (one for 32 columns), fsum = scale * float(sum of the group's q) (one
//   rounding). Where d and m are products of an f16 and a byte they are exact in float32.
//   F32: acc = fma(w, x, acc).
//   F16 (widened, which is exact) times f32: the even columns and the odd ones are each summed as F32
//   is, then even + odd. One sum of all would wait for itself longer than memory takes.
//   BF16: both sides widened, acc = fma(w, x, acc); the AVX-512 BF16 instruction has its own rounding,
//   so BF16 is bit-equal within an ISA class only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "octavo/kernels.h"

namespace octavo {

// Storage of one panel; K ascending. The quantized ones are blocks of 32 columns: payload, scales,
// minima if there are any. A payload is vectors of 16 rows x 4 bytes; column quad j is columns
// 4j .. 4j + 3, byte i of row r is column 4j + i. Codes are put together from planes:
//   nibbles  4 vectors: vector j holds quad j in its low nibbles and quad j + 4 in its high ones
//   pairs    2 vectors: vector v holds quads 4v .. 4v + 3 in its bit pairs, lowest first
//   bits     1 vector: bit j of a byte is quad j's
//   bytes    8 vectors: vector j is quad j
// A layout's planes lie in this order, those with the codes' lowest bits first:
//   kF32   16 rows x 1 column            64 B a column
//   kBF16  16 rows x 2 columns           64 B a column pair
//   kF16   2 columns x 16 rows           64 B a column pair
//   kQ4    nibbles                       w = d * (q - 8)
//   kQ4M   nibbles                       w = d * q + m
//   kQ5    nibbles, bits                 w = d * (q - 16)
//   kQ5M   nibbles, bits                 w = d * q + m
//   kQ8    bytes                         w = d * (q - 128)
//   kQ8M   bytes                         w = d * q + m
//   kQ2M   pairs                         w = d * q + m
//   kQ3    pairs, bits                   w = d * (q - 4)
//   kQ6    nibbles, pairs                w = d * (q - 32)
enum class Layout : int32_t {
  kF32 = 0, kBF16 = 1, kQ4 = 2, kQ4M = 3, kQ5 = 4, kQ5M = 5, kQ8 = 6, kQ8M = 7, kQ2M = 8, kQ3 = 9,
  kQ6 = 10, kF16 = 11
};

// Scales of a block's 16 rows, and minima in the same form:
//   kF16, kF32  one a row
//   kK32        one signed byte a row, a multiple of an f16 that holds for 256 columns: before each
//               run of 8 blocks stand the 16 f16 of the scales, then those of the minima
//   kK16        the same with two bytes a row, for columns 0 .. 15 (all rows) and 16 .. 31
enum class ScaleType : int32_t { kNone = 0, kF16 = 1, kF32 = 2, kK32 = 3, kK16 = 4 };

constexpr int kSuperBlocks = 8;  // blocks of 32 columns in a run of 256

// What is in a block of a layout. Usable at compile time only, so that files of different ISAs may
// share it.
struct LayoutShape {
  bool nibbles, pairs, bits;  // planes; none of them: bytes
  bool min;
  int zero_shift;  // the zero point is 1 << zero_shift; unused with a minimum
};

constexpr LayoutShape layout_shape(Layout layout) {
  switch (layout) {
    case Layout::kQ4: return {true, false, false, false, 3};
    case Layout::kQ4M: return {true, false, false, true, 0};
    case Layout::kQ5: return {true, false, true, false, 4};
    case Layout::kQ5M: return {true, false, true, true, 0};
    case Layout::kQ8M: return {false, false, false, true, 0};
    case Layout::kQ2M: return {false, true, false, true, 0};
    case Layout::kQ3: return {false, true, true, false, 2};
    case Layout::kQ6: return {true, true, false, false, 5};
    default: return {false, false, false, false, 7};
  }
}

constexpr bool is_super(ScaleType s) { return s == ScaleType::kK32 || s == ScaleType::kK16; }

// The columns of a block that share a scale: all 32, or two halves.
constexpr int scale_parts(ScaleType s) { return s == ScaleType::kK16 ? 2 : 1; }

constexpr size_t payload_bytes(Layout layout) {
  const LayoutShape s = layout_shape(layout);
  if (!s.nibbles && !s.pairs) return 512;
  return (s.nibbles ? 256 : 0) + (s.pairs ? 128 : 0) + (s.bits ? 64 : 0);
}

constexpr size_t scale_bytes(ScaleType s) {  // of a block's 16 rows, without the minima
  switch (s) {
    case ScaleType::kF16: return kLanes * 2;
    case ScaleType::kF32: return kLanes * 4;
    case ScaleType::kK32: return kLanes;
    case ScaleType::kK16: return kLanes * 2;
    default: return 0;
  }
}

constexpr size_t quant_block_bytes(Layout layout, ScaleType scale) {
  return payload_bytes(layout) + scale_bytes(scale) * (layout_shape(layout).min ? 2 : 1);
}

// Of what stands before each run of 256 columns.
constexpr size_t super_bytes(Layout layout, ScaleType scale) {
  return is_super(scale) ? kLanes * 2 * (layout_shape(layout).min ? 2u : 1u) : 0;
}

// One block of a quantized panel, as constants of the code that reads it.
template <Layout L, ScaleType S>
struct BlockShape {
  static constexpr Layout kLayout = L;
  static constexpr ScaleType kScale = S;
  static constexpr LayoutShape kShape = layout_shape(L);
  static constexpr bool kNibbles = kShape.nibbles;
  static constexpr bool kPairs = kShape.pairs;
  static constexpr bool kBits = kShape.bits;
  static constexpr bool kMin = kShape.min;
  static constexpr int kZeroShift = kShape.zero_shift;
  static constexpr int kParts = scale_parts(S);
  static constexpr bool kSuper = is_super(S);
  // In bytes: where the planes are, the payload, which the scales follow; where the minima are; the
  // whole block; what stands before a run of 256 columns.
  static constexpr size_t kPairsAt = kNibbles ? 256 : 0;
  static constexpr size_t kBitsAt = kPairsAt + (kPairs ? 128 : 0);
  static constexpr size_t kPayload = payload_bytes(L);
  static constexpr size_t kMinAt = kPayload + scale_bytes(S);
  static constexpr size_t kBytes = quant_block_bytes(L, S);
  static constexpr size_t kHeader = super_bytes(L, S);
  static constexpr size_t kRun = kHeader + kSuperBlocks * kBytes;
};

// Block b of a panel and the header of the run it is in. Static: a copy in each file of each ISA.
template <class Block>
[[maybe_unused]] static inline const uint8_t* header_of(const uint8_t* panel, size_t b) {
  return panel + b / kSuperBlocks * Block::kRun;
}

template <class Block>
[[maybe_unused]] static inline const uint8_t* block_of(const uint8_t* panel, size_t b) {
  if (!Block::kSuper) return panel + b * Block::kBytes;
  return header_of<Block>(panel, b) + Block::kHeader + b % kSuperBlocks * Block::kBytes;
}

// What a part of a block takes from the activations: entry `at` of their groups.
struct PartSums {
  float scale;
  int32_t isum;
  float fsum;

  [[gnu::always_inline]] PartSums(const ActRows& acts, size_t at, int parts, int part)
      : scale(acts.scale[at]), isum(acts.isum[at]), fsum(acts.fsum[at]) {
    if (parts == 1) return;
    isum = part == 0 ? acts.isum_low[at] : isum - acts.isum_low[at];
    fsum = scale * static_cast<float>(isum);
  }
};

// Source types, as a model file stores them row by row.
enum class QuantType : int32_t {
  kF32, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K,
  kInt4, kInt4Min, kInt8, kInt8Min,  // of no file: blocks with f32 scales (weights/quant_types.py)
  kQ2_K, kQ3_K, kQ6_K, kMXFP4, kF16, kCount
};

// Rows are padded with zeros to 16 in groups of `group_rows`, so that a group (one attention head)
// starts on a panel.
struct PackedMatrix {
  Layout layout = Layout::kF32;
  ScaleType scale = ScaleType::kNone;
  int32_t k = 0;
  int32_t rows = 0;
  int32_t group_rows = 0;
  int32_t panels = 0;
  int32_t group_panels = 0;
  size_t panel_stride = 0;  // bytes
  const uint8_t* data = nullptr;

  int groups() const { return rows / group_rows; }
  size_t bytes() const { return static_cast<size_t>(panels) * panel_stride; }
  ActKind act_kind() const {
    if (layout == Layout::kF32 || layout == Layout::kF16) return ActKind::kF32;
    return layout == Layout::kBF16 ? ActKind::kBF16 : ActKind::kI8;
  }
};

// f(BlockShape<...>{}) for the matrix's layout and scales: every combination that packed_shape makes.
template <class R, class F>
static R for_shape(const PackedMatrix& w, F f) {
  constexpr ScaleType kF16 = ScaleType::kF16, kK32 = ScaleType::kK32, kK16 = ScaleType::kK16;
  constexpr ScaleType kF32 = ScaleType::kF32;
  const bool half = w.scale == kF16;
  switch (w.layout) {
    case Layout::kQ4:
      return half ? f(BlockShape<Layout::kQ4, kF16>{}) : f(BlockShape<Layout::kQ4, kF32>{});
    case Layout::kQ4M:
      if (w.scale == kF32) return f(BlockShape<Layout::kQ4M, kF32>{});
      return half ? f(BlockShape<Layout::kQ4M, kF16>{}) : f(BlockShape<Layout::kQ4M, kK32>{});
    case Layout::kQ5:
      return half ? f(BlockShape<Layout::kQ5, kF16>{}) : f(BlockShape<Layout::kQ5, kF32>{});
    case Layout::kQ5M:
      return half ? f(BlockShape<Layout::kQ5M, kF16>{}) : f(BlockShape<Layout::kQ5M, kK32>{});
    case Layout::kQ2M: return f(BlockShape<Layout::kQ2M, kK16>{});
    case Layout::kQ3: return f(BlockShape<Layout::kQ3, kK16>{});
    case Layout::kQ6: return f(BlockShape<Layout::kQ6, kK16>{});
    case Layout::kQ8M: return f(BlockShape<Layout::kQ8M, kF32>{});
    default:
      return half ? f(BlockShape<Layout::kQ8, kF16>{}) : f(BlockShape<Layout::kQ8, kF32>{});
  }
}

// Bytes of one row in the file, or 0 where k does not fit the type.
size_t source_row_bytes(QuantType type, int k);
// The shape of a matrix of that source type once packed (data = nullptr).
PackedMatrix packed_shape(QuantType type, int rows, int k, int group_rows);
// Lossless. `source` holds matrix.rows rows of source_row_bytes; `data` matrix.bytes() bytes.
void pack_matrix(const PackedMatrix& matrix, QuantType type, const uint8_t* source, uint8_t* data);
// Row `row` as k floats (an embedding lookup).
void unpack_row(const PackedMatrix& matrix, int row, float* out);

struct LinearKernels {
  const char* isa;
  // out[i * ldo + 16 * p + r] = row r of panel `panel` + p times activation row row0 + i, for
  // m > 0 rows and `panels` panels. acts.kind must be matrix.act_kind().
  void (*tile)(const PackedMatrix& matrix, int panel, int panels, const ActRows& acts, int row0,
               int m, float* out, int64_t ldo);
};

const LinearKernels* linear_generic();
// Each nullptr where the build or the CPU lacks it.
const LinearKernels* linear_avx2();
const LinearKernels* linear_avx512();
const LinearKernels* linear_avx512bf16();  // as linear_avx512, bf16 by vdpbf16ps
const LinearKernels* linear_neon();
const LinearKernels* linear_neondot();  // as linear_neon, int8 by the dot-product instruction

}  // namespace octavo
