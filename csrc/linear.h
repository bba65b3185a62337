// Packed weights and the matrix products over them.
//
// A packed matrix is a run of panels of 16 output rows: row = lane, so no product ever needs a
// horizontal sum, and the sum of one output runs over K ascending on every ISA and for every number
// of activation rows. Bit rules (the oracle is linear_generic.cc at one activation row):
//   I8 activations, quantized weights, for each block of 32 columns ascending:
//     dot = sum of (stored - zero point) * q, an exact int32;  t = d * scale (one rounding);
//     acc = fma(t, float(dot), acc);  with a minimum: acc = fma(m, fsum, acc)
//   F32: acc = fma(w, x, acc).  BF16: both sides widened, acc = fma(w, x, acc); the AVX-512 BF16
//   instruction has its own rounding, so float weights are bit-equal within an ISA class only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "octavo/kernels.h"

namespace octavo {

// Storage of one panel; K ascending, and for the quantized ones a block is payload | d[16] | m[16].
//   kF32   16 rows x 1 column            64 B a column
//   kBF16  16 rows x 2 columns           64 B a column pair
//   kQ4    4 vectors of 16 rows x 4 B    w = d * (q - 8): byte i of row r in vector j holds column
//          4j + i in its low nibble and column 16 + 4j + i in its high nibble
//   kQ4M   the same payload              w = d * q + m
//   kQ8    8 vectors of 16 rows x 4 B    w = d * (q - 128): byte i of row r in vector j is column 4j + i
//   kQ8M   the same payload              w = d * q + m
enum class Layout : int32_t { kF32 = 0, kBF16 = 1, kQ4 = 2, kQ4M = 3, kQ8 = 4, kQ8M = 5 };
enum class ScaleType : int32_t { kNone = 0, kF16 = 1, kF32 = 2 };

// One 32-column block of a quantized panel: payload, then 16 scales, then 16 minima if there are any.
// Constants only, so that files of different ISAs may share it.
template <Layout L, ScaleType S>
struct BlockShape {
  static constexpr bool kNibbles = L == Layout::kQ4 || L == Layout::kQ4M;
  static constexpr bool kMin = L == Layout::kQ4M || L == Layout::kQ8M;
  static constexpr int kZeroShift = L == Layout::kQ4 ? 3 : 7;  // zero points 8 and 128
  // In bytes: the payload, which the scales follow; where the minima are; the whole block.
  static constexpr size_t kPayload = kNibbles ? 256 : 512;
  static constexpr size_t kScaleBytes = kLanes * (S == ScaleType::kF16 ? 2 : 4);
  static constexpr size_t kMinAt = kPayload + kScaleBytes;
  static constexpr size_t kBytes = kMinAt + (kMin ? kScaleBytes : 0);
};

// Source types, as a model file stores them row by row.
enum class QuantType : int32_t {
  kF32, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K,
  kInt4, kInt4Min, kInt8, kInt8Min,  // of no file: blocks with f32 scales (weights/quant_types.py)
  kCount
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
    if (layout == Layout::kF32) return ActKind::kF32;
    return layout == Layout::kBF16 ? ActKind::kBF16 : ActKind::kI8;
  }
};

// Bytes of one row in the file, or 0 where k does not fit the type.
size_t source_row_bytes(QuantType type, int k);
size_t quant_block_bytes(Layout layout, ScaleType scale);
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
