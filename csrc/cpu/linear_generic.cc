// Matrix products in plain C++: the bit oracle of every ISA. Each activation row is computed alone,
// so nothing can depend on the number of rows of a call.
#include <cmath>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "float_convert.h"
#include "linear.h"

namespace octavo {
namespace {

constexpr int kVectorBytes = 64;

void load_halves(const uint8_t* source, float* out) {
  // The conversion is exact, so the instruction and the bit arithmetic agree.
#if defined(__F16C__)
  const __m128i* halves = reinterpret_cast<const __m128i*>(source);
  _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(halves)));
  _mm256_storeu_ps(out + 8, _mm256_cvtph_ps(_mm_loadu_si128(halves + 1)));
#elif defined(__aarch64__)
  __fp16 half[kLanes];
  std::memcpy(half, source, sizeof(half));
  for (int r = 0; r < kLanes; ++r) out[r] = half[r];
#else
  uint16_t half[kLanes];
  std::memcpy(half, source, sizeof(half));
  for (int r = 0; r < kLanes; ++r) out[r] = f16_to_f32(half[r]);
#endif
}

// Scales or minima of a part of a block.
template <ScaleType S>
void load_scales(const uint8_t* source, const uint8_t* header, int part, float* out) {
  if (S == ScaleType::kF32) {
    std::memcpy(out, source, kLanes * sizeof(float));
    return;
  }
  if (!is_super(S)) return load_halves(source, out);
  load_halves(header, out);
  for (int r = 0; r < kLanes; ++r) {
    out[r] *= static_cast<float>(static_cast<int8_t>(source[kLanes * part + r]));
  }
}

// Sixteen 16-bit lanes: four rows of a quad. GCC and Clang compile these vectors for any ISA.
constexpr int kPieces = 4;  // of a 64-byte vector of weights
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef int16_t Words16 __attribute__((vector_size(32)));
typedef int64_t Quads4 __attribute__((vector_size(32)));
typedef int32_t Pairs8 __attribute__((vector_size(32)));

inline Words16 load_words(const uint8_t* p) {
  Bytes16 bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, Words16);
}

// Four activations, repeated for four rows.
inline Words16 load_quad(const int8_t* a) {
  int16_t wide[4] = {a[0], a[1], a[2], a[3]};
  int64_t quad;
  std::memcpy(&quad, wide, sizeof(quad));
  const Quads4 quads = {quad, quad, quad, quad};
  return (Words16)quads;  // the same bits
}

// dot[r] += factor * the sum of the four words of row r.
inline void fold_rows(const Words16* sums, int32_t factor, int32_t* dot) {
  for (int p = 0; p < kPieces; ++p) {
    const Pairs8 pairs = (Pairs8)sums[p];  // the same bits
    const Pairs8 both = ((pairs << 16) >> 16) + (pairs >> 16);
    for (int r = 0; r < 4; ++r) dot[4 * p + r] += factor * (both[2 * r] + both[2 * r + 1]);
  }
}

// Codes of quad j, rows 4p .. 4p + 3.
template <class Block>
inline Words16 load_codes(const uint8_t* payload, int j, int p) {
  const int row = 16 * p;
  if (!Block::kNibbles && !Block::kPairs) return load_words(payload + j * kVectorBytes + row);
  Words16 codes = {};
  if (Block::kNibbles) {
    codes = (load_words(payload + j % 4 * kVectorBytes + row) >> (4 * (j / 4))) & 15;
  }
  constexpr int kAbove = Block::kNibbles ? 4 : 0;
  if (Block::kPairs) {
    const Words16 pairs = load_words(payload + Block::kPairsAt + j / 4 * kVectorBytes + row);
    codes |= ((pairs >> (2 * (j % 4))) & 3) << kAbove;
  }
  if (Block::kBits) {
    const Words16 bits = load_words(payload + Block::kBitsAt + row);
    codes |= ((bits >> j) & 1) << (Block::kPairs ? kAbove + 2 : kAbove);
  }
  return codes;
}

// Dot products of the columns of one part. Exact: a word sums four products of at most 63 * 127,
// 32,004 in all; bytes go as nibbles.
template <class Block>
void block_dot(const uint8_t* payload, const int8_t* a, int part, int32_t isum, int32_t* dot) {
  constexpr bool kBytes = !Block::kNibbles && !Block::kPairs;
  constexpr int kQuads = 8 / Block::kParts;
  for (int r = 0; r < kLanes; ++r) dot[r] = Block::kMin ? 0 : -isum * (1 << Block::kZeroShift);
  for (int from = part * kQuads; from < (part + 1) * kQuads; from += 4) {
    Words16 low[kPieces] = {};
    Words16 high[kPieces] = {};
    for (int j = from; j < from + 4; ++j) {
      const Words16 quad = load_quad(a + 4 * j);
      for (int p = 0; p < kPieces; ++p) {
        const Words16 w = load_codes<Block>(payload, j, p);
        low[p] += (kBytes ? w & 15 : w) * quad;
        if (kBytes) high[p] += (w >> 4) * quad;
      }
    }
    fold_rows(low, 1, dot);
    if (kBytes) fold_rows(high, 16, dot);
  }
}

template <Layout L, ScaleType S>
void panel_i8(const uint8_t* panel, const ActRows& acts, int row, float* out) {
  using Block = BlockShape<L, S>;
  const size_t blocks = acts.k / kQuantGroup;
  const int8_t* q = acts.q + static_cast<size_t>(row) * acts.k;
  const size_t first = static_cast<size_t>(row) * blocks;
  float acc[kLanes] = {};
  for (size_t b = 0; b < blocks; ++b) {
    const uint8_t* header = header_of<Block>(panel, b);
    const uint8_t* block = block_of<Block>(panel, b);
    for (int part = 0; part < Block::kParts; ++part) {
      const PartSums sums(acts, first + b, Block::kParts, part);
      float d[kLanes], m[kLanes];
      load_scales<S>(block + Block::kPayload, header, part, d);
      if (Block::kMin) load_scales<S>(block + Block::kMinAt, header + 2 * kLanes, part, m);
      int32_t dot[kLanes];
      block_dot<Block>(block, q + b * kQuantGroup, part, sums.isum, dot);
      for (int r = 0; r < kLanes; ++r) {
        const float t = d[r] * sums.scale;
        acc[r] = std::fma(t, static_cast<float>(dot[r]), acc[r]);
        if (Block::kMin) acc[r] = std::fma(m[r], sums.fsum, acc[r]);
      }
    }
  }
  std::memcpy(out, acc, sizeof(acc));
}

void panel_f32(const uint8_t* panel, const ActRows& acts, int row, float* out) {
  const float* w = reinterpret_cast<const float*>(panel);
  const float* x = acts.f32 + static_cast<size_t>(row) * acts.k;
  float acc[kLanes] = {};
  for (int k = 0; k < acts.k; ++k) {
    for (int r = 0; r < kLanes; ++r) acc[r] = std::fma(w[k * kLanes + r], x[k], acc[r]);
  }
  std::memcpy(out, acc, sizeof(acc));
}

void panel_bf16(const uint8_t* panel, const ActRows& acts, int row, float* out) {
  const uint16_t* w = reinterpret_cast<const uint16_t*>(panel);
  const uint16_t* x = acts.bf16 + static_cast<size_t>(row) * acts.k;
  float acc[kLanes] = {};
  for (int k = 0; k < acts.k; k += 2) {
    const float x0 = bf16_to_f32(x[k]);
    const float x1 = bf16_to_f32(x[k + 1]);
    for (int r = 0; r < kLanes; ++r) {
      const float w0 = bf16_to_f32(w[(k * kLanes) + 2 * r]);
      const float w1 = bf16_to_f32(w[(k * kLanes) + 2 * r + 1]);
      acc[r] = std::fma(w1, x1, std::fma(w0, x0, acc[r]));
    }
  }
  std::memcpy(out, acc, sizeof(acc));
}

void panel_f16(const uint8_t* panel, const ActRows& acts, int row, float* out) {
  const float* x = acts.f32 + static_cast<size_t>(row) * acts.k;
  float even[kLanes] = {}, odd[kLanes] = {};
  for (int k = 0; k < acts.k; k += 2, panel += kVectorBytes) {
    float w0[kLanes], w1[kLanes];
    load_halves(panel, w0);
    load_halves(panel + kVectorBytes / 2, w1);
    for (int r = 0; r < kLanes; ++r) {
      even[r] = std::fma(w0[r], x[k], even[r]);
      odd[r] = std::fma(w1[r], x[k + 1], odd[r]);
    }
  }
  for (int r = 0; r < kLanes; ++r) out[r] = even[r] + odd[r];
}

using PanelFn = void (*)(const uint8_t*, const ActRows&, int, float*);

PanelFn panel_function(const PackedMatrix& w) {
  if (w.layout == Layout::kF32) return panel_f32;
  if (w.layout == Layout::kBF16) return panel_bf16;
  if (w.layout == Layout::kF16) return panel_f16;
  return for_shape<PanelFn>(w, [](auto shape) -> PanelFn {
    return panel_i8<decltype(shape)::kLayout, decltype(shape)::kScale>;
  });
}

void tile(const PackedMatrix& matrix, int panel, int panels, const ActRows& acts, int row0, int m,
          float* out, int64_t ldo) {
  const PanelFn run = panel_function(matrix);
  for (int p = 0; p < panels; ++p) {
    const uint8_t* data = matrix.data + static_cast<size_t>(panel + p) * matrix.panel_stride;
    for (int i = 0; i < m; ++i) run(data, acts, row0 + i, out + i * ldo + p * kLanes);
  }
}

}  // namespace

const LinearKernels* linear_generic() {
  static const LinearKernels table = {"generic", tile};
  return &table;
}

}  // namespace octavo
