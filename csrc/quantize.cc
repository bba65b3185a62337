// Quantization at load. The rules, and every operation's order, are those of the NumPy reference
// (octavo/weights/quantize.py: _fit_lines, _affine_codes, _q8_0), which has the reasons. Eight
// blocks run side by side, a lane each, so the compiler's vectors need no horizontal sum.
#include "quantize.h"

#include <cmath>
#include <cstring>

#include "float_convert.h"

namespace octavo {
namespace {

constexpr int kColumns = kQuantGroup;
// At once: GCC does comparisons of wider vectors than the ISA has (AVX2: 8 floats) one by one.
constexpr int kBlocks = 8;
constexpr float kMostQ4 = 15.0f, kMostQ8 = 127.0f;
// Codes past the top of the range that a line's slope is tried with.
constexpr double kExtraCodes[] = {-0.6, 0, 0.6, 1.2, 2, 3};

// A float of each block. GCC and Clang compile these vectors for any ISA.
typedef float Lanes __attribute__((vector_size(4 * kBlocks)));

// Column c of block b at values[c][b].
using Group = Lanes[kColumns];

inline float load_value(QuantType from, const uint8_t* source, size_t at) {
  if (from == QuantType::kF32) {
    float value;
    std::memcpy(&value, source + 4 * at, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, source + 2 * at, 2);
  return from == QuantType::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

// `count` blocks; the lanes behind them repeat the first.
template <QuantType FROM>
void load_group_of(const uint8_t* source, size_t first, int count, Group out) {
  float* cells = reinterpret_cast<float*>(out);
  for (int b = 0; b < kBlocks; ++b) {
    const size_t at = (first + (b < count ? b : 0)) * kColumns;
    for (int c = 0; c < kColumns; ++c) cells[c * kBlocks + b] = load_value(FROM, source, at + c);
  }
}

void load_group(QuantType from, const uint8_t* source, size_t first, int count, Group out) {
  if (from == QuantType::kF32) {
    load_group_of<QuantType::kF32>(source, first, count, out);
  } else if (from == QuantType::kF16) {
    load_group_of<QuantType::kF16>(source, first, count, out);
  } else {
    load_group_of<QuantType::kBF16>(source, first, count, out);
  }
}

// As the reference divides: by the inverse, 0 where the divisor is 0.
inline float divide(float value, float divisor) {
  return value * (divisor != 0.0f ? 1.0f / divisor : 0.0f);
}

// The nearest integers from low to high, ties to even; NaN stays NaN, as in NumPy. What is within
// 2^22 of 0 is rounded by the addition.
inline Lanes round_clipped(Lanes x, float low, float high) {
  const Lanes least = low + Lanes{}, most = high + Lanes{}, magic = 12582912.0f + Lanes{};
  x = x < least ? least : x;
  x = x > most ? most : x;
  return (x + magic) - magic;
}

// The least-squares line of every block through (code, value), the best of the slopes tried.
struct Lines {
  Lanes slope, offset, error;
};

// Rounds to codes by value * inverse + start and takes the line through them where it is better.
void try_slope(const Group values, const Lanes& sum_v, const Lanes& inverse, const Lanes& start,
               Lines* best) {
  Lanes sum_q = {}, sum_qq = {}, sum_qv = {};
  for (int c = 0; c < kColumns; ++c) {
    const Lanes v = values[c];
    const Lanes q = round_clipped(v * inverse + start, 0.0f, kMostQ4);
    sum_q += q;
    sum_qq += q * q;
    sum_qv += q * v;
  }
  constexpr float kSize = kColumns;
  for (int b = 0; b < kBlocks; ++b) {
    const float line = divide(kSize * sum_qv[b] - sum_q[b] * sum_v[b],
                              kSize * sum_qq[b] - sum_q[b] * sum_q[b]);
    const float shift = (sum_v[b] - line * sum_q[b]) / kSize;
    const float error = -line * sum_qv[b] - shift * sum_v[b];
    const bool better = error < best->error[b];
    best->error[b] = better ? error : best->error[b];
    best->slope[b] = better ? line : best->slope[b];
    best->offset[b] = better ? shift : best->offset[b];
  }
}

void fit_lines(const Group values, Lines* best) {
  Lanes low = values[0], high = values[0], sum_v = values[0];
  for (int c = 1; c < kColumns; ++c) {
    const Lanes v = values[c];
    low = v < low ? v : low;
    high = v > high ? v : high;
    sum_v += v;
  }
  for (int b = 0; b < kBlocks; ++b) {
    best->slope[b] = 0.0f;
    best->offset[b] = sum_v[b] / static_cast<float>(kColumns);
    best->error[b] = INFINITY;
  }
  Lanes inverse, start;
  for (double extra : kExtraCodes) {
    const float codes = static_cast<float>(static_cast<double>(kMostQ4) + extra);
    for (int b = 0; b < kBlocks; ++b) {
      inverse[b] = divide(codes, high[b] - low[b]);
      start[b] = -low[b] * inverse[b];
    }
    try_slope(values, sum_v, inverse, start, best);
  }
  for (int b = 0; b < kBlocks; ++b) {  // the best line once more
    inverse[b] = divide(1.0f, best->slope[b]);
    start[b] = -best->offset[b] * inverse[b];
  }
  try_slope(values, sum_v, inverse, start, best);
  for (int b = 0; b < kBlocks; ++b) {  // no zero is negative: its sign would be an accident
    best->slope[b] += 0.0f;
    best->offset[b] += 0.0f;
  }
}

void round_codes(const Group values, const Lanes& offset, const Lanes& scale, float low, float high,
                 int8_t (*codes)[kBlocks]) {
  Lanes inverse;
  for (int b = 0; b < kBlocks; ++b) inverse[b] = divide(1.0f, scale[b]);
  for (int c = 0; c < kColumns; ++c) {
    const Lanes q = round_clipped((values[c] - offset) * inverse, low, high);
    for (int b = 0; b < kBlocks; ++b) codes[c][b] = static_cast<int8_t>(static_cast<int32_t>(q[b]));
  }
}

// The lanes as float16 bits, and as what those mean.
void store_halves(const Lanes& values, uint16_t* halves, Lanes* meaning) {
  for (int b = 0; b < kBlocks; ++b) {
    halves[b] = f32_to_f16(values[b]);
    (*meaning)[b] = f16_to_f32(halves[b]);
  }
}

void to_q4_1(const Group values, int count, uint8_t* out) {
  Lines lines;
  fit_lines(values, &lines);
  uint16_t scale[kBlocks], offset[kBlocks];
  Lanes stored_scale, stored_offset;
  store_halves(lines.slope, scale, &stored_scale);
  store_halves(lines.offset, offset, &stored_offset);
  int8_t codes[kColumns][kBlocks];
  round_codes(values, stored_offset, stored_scale, 0.0f, kMostQ4, codes);
  constexpr int kHalf = kColumns / 2;
  for (int b = 0; b < count; ++b, out += 4 + kHalf) {
    std::memcpy(out, &scale[b], 2);
    std::memcpy(out + 2, &offset[b], 2);
    for (int c = 0; c < kHalf; ++c) {
      out[4 + c] = static_cast<uint8_t>(codes[c][b] | (codes[c + kHalf][b] << 4));
    }
  }
}

void to_q8_0(const Group values, int count, uint8_t* out) {
  Lanes peak = {};
  for (int c = 0; c < kColumns; ++c) {
    const Lanes magnitude = values[c] < Lanes{} ? -values[c] : values[c];
    peak = magnitude > peak ? magnitude : peak;
  }
  peak = peak / kMostQ8;
  uint16_t scale[kBlocks];
  Lanes stored;
  const Lanes zero = {};
  store_halves(peak, scale, &stored);
  int8_t codes[kColumns][kBlocks];
  round_codes(values, zero, stored, -kMostQ8, kMostQ8, codes);
  for (int b = 0; b < count; ++b, out += 2 + kColumns) {
    std::memcpy(out, &scale[b], 2);
    for (int c = 0; c < kColumns; ++c) out[2 + c] = static_cast<uint8_t>(codes[c][b]);
  }
}

// The largest magnitude so far as bits: those order like the values, with what is not finite on top.
uint32_t raise_peak(const Group values, uint32_t peak) {
  uint32_t most[kBlocks] = {};
  for (int c = 0; c < kColumns; ++c) {
    for (int b = 0; b < kBlocks; ++b) {
      const uint32_t magnitude = f32_to_bits(values[c][b]) & 0x7FFFFFFFu;
      most[b] = magnitude > most[b] ? magnitude : most[b];
    }
  }
  for (uint32_t magnitude : most) peak = magnitude > peak ? magnitude : peak;
  return peak;
}

}  // namespace

bool can_quantize(QuantType from, QuantType to) {
  const bool floats =
      from == QuantType::kF32 || from == QuantType::kF16 || from == QuantType::kBF16;
  return floats && (to == QuantType::kQ4_1 || to == QuantType::kQ8_0);
}

float quantize_rows(QuantType from, QuantType to, const uint8_t* source, size_t rows,
                    size_t columns, uint8_t* out) {
  const size_t blocks = rows * columns / kColumns;
  const size_t bytes = source_row_bytes(to, kColumns);
  uint32_t peak = 0;
  for (size_t first = 0; first < blocks; first += kBlocks, out += kBlocks * bytes) {
    const int count = static_cast<int>(blocks - first < kBlocks ? blocks - first : kBlocks);
    Group values;
    load_group(from, source, first, count, values);
    peak = raise_peak(values, peak);
    if (peak >= 0x7F800000u) break;
    to == QuantType::kQ4_1 ? to_q4_1(values, count, out) : to_q8_0(values, count, out);
  }
  return bits_to_f32(peak);
}

}  // namespace octavo
