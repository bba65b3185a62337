// Row-wise kernels: norms, rotary embedding, KV writes, SwiGLU, with the conversion of their results
// (bf16 rounding, int8 quantization) fused in. Written once over Vec; included by
// elementwise_<isa>.cc after vec_math.h. Knows nothing of threads or of the plan.
//
// How values become int8: quantize.h.
#include "cpu/isa_kernels.h"
#include "cpu/quantize.h"

namespace octavo {
namespace OCTAVO_ISA {

// Stores up to 16 columns of a float or bf16 row.
static inline void store_act(ActRows* out, int64_t index, Vec y, int n) {
  if (out->kind == ActKind::kF32) {
    store_n(out->f32 + index, y, n);
  } else {
    store_bf16_n(out->bf16 + index, y, n);
  }
}

// Groups of 32 columns on their way to int8, up to sixteen at a time: scales and sums are then
// vectors, and no group waits for its own folds and divisions.
struct GroupBatch {
  alignas(64) float values[kLanes * kQuantGroup];
  alignas(64) float magnitudes[kLanes * kLanes];
  alignas(64) float scales[kLanes];
  alignas(64) float inverses[kLanes];
  alignas(64) int8_t bytes[kLanes * kQuantGroup];
  int64_t at[kLanes];  // group g of the output: columns 32 g .. 32 g + 31 of its rows laid end to end
};

static inline void store_sums(const ActRows& out, const GroupBatch& batch, int count, Vec scale,
                              IVec low, IVec sum) {
  const Vec fsum = mul(scale, to_float(sum));
  const int64_t first = batch.at[0];
  if (count == kLanes && batch.at[kLanes - 1] - first == kLanes - 1) {
    store(out.scale + first, scale);
    store(out.fsum + first, fsum);
    store_i32(out.isum + first, sum);
    store_i32(out.isum_low + first, low);
    return;
  }
  alignas(64) float fsums[kLanes];
  alignas(64) int32_t sums[kLanes], lows[kLanes];
  store(fsums, fsum);
  store_i32(sums, sum);
  store_i32(lows, low);
  for (int i = 0; i < count; ++i) {
    const int64_t g = batch.at[i];
    out.scale[g] = batch.scales[i];
    out.fsum[g] = fsums[i];
    out.isum[g] = sums[i];
    out.isum_low[g] = lows[i];
  }
}

__attribute__((noinline)) static void quantize_batch(const ActRows& out, GroupBatch& batch,
                                                     int count) {
  for (int g = count; g < kLanes; ++g) store(batch.magnitudes + g * kLanes, set1(0.0f));
  const Vec scale = short_scales(div(as_float(row_imax(batch.magnitudes)), set1(127.0f)));
  store(batch.scales, scale);
  store(batch.inverses, div(set1(1.0f), scale));
  int8_t* q = out.q;
  for (int g = 0; g < count; ++g) {
    const Divisor by = {batch.scales[g], batch.inverses[g], usual_scale(batch.scales[g])};
    const float* y = batch.values + g * kQuantGroup;
    const IVec q0 = quantize16(load(y), by), q1 = quantize16(load(y + kLanes), by);
    store_i8_pair(q + batch.at[g] * kQuantGroup, q0, q1);
    store_i8_pair(batch.bytes + g * kQuantGroup, q0, q1);
  }
  IVec low, sum;
  half_sums(batch.bytes, low, sum);
  store_sums(out, batch, count, scale, low, sum);
}

// Rows out_row .. out_row + m - 1, n columns from col on, of an int8 matrix; values(row, i, y0, y1)
// are columns i .. i + 31 of these.
template <class F>
static inline void quantize_rows(const ActRows& out, int out_row, int col, int m, int n, F&& values) {
  GroupBatch batch;
  const int64_t stride = out.k / kQuantGroup;
  int64_t at = out_row * stride + col / kQuantGroup;
  int count = 0;
  for (int row = 0; row < m; ++row, at += stride) {
    for (int i = 0; i < n; i += kQuantGroup) {
      Vec y0, y1;
      values(row, i, y0, y1);
      batch.at[count] = at + i / kQuantGroup;
      store(batch.values + count * kQuantGroup, y0);
      store(batch.values + count * kQuantGroup + kLanes, y1);
      const IVec largest = imax(magnitude_bits(y0), magnitude_bits(y1));
      store(batch.magnitudes + count * kLanes, as_float(largest));
      if (++count < kLanes) continue;
      quantize_batch(out, batch, count);
      count = 0;
    }
  }
  if (count) quantize_batch(out, batch, count);
}

// 1 / sqrt(mean of squares + eps) of R rows side by side: each is one chain of sums.
template <int R>
static inline void inverse_rms(const float* x, int64_t ldx, int k, float eps, float* inverse) {
  Vec acc[R];
  for (int r = 0; r < R; ++r) acc[r] = set1(0.0f);
  int i = 0;
  for (; i + 16 <= k; i += 16) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Vec v = load(x + r * ldx + i);
      acc[r] = fma(v, v, acc[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    if (i < k) {
      const Vec v = load_n(x + r * ldx + i, k - i);
      acc[r] = fma(v, v, acc[r]);
    }
    const float mean = fold_add(acc[r]) / static_cast<float>(k);
    inverse[r] = 1.0f / __builtin_sqrtf(mean + eps);
  }
}

struct RowNorm {
  const float* w;  // nullptr: values pass unchanged
  Vec add_one;
  Vec r;
};

static inline Vec normed(Vec x, int i, int n, const RowNorm& norm) {
  if (norm.w == nullptr) return x;
  const Vec w = n == 16 ? load(norm.w + i) : load_n(norm.w + i, n);
  return mul(mul(x, norm.r), add(w, norm.add_one));
}

// The factors of a norm's rows, kNormTogether at a time.
constexpr int kNormTogether = 4;

static inline float row_factor(const float* x, int64_t ldx, int row, int m, int k, float eps,
                               float* factors) {
  if (row % kNormTogether == 0) {
    if (row + kNormTogether <= m) {
      inverse_rms<kNormTogether>(x, ldx, k, eps, factors);
    } else {
      for (int r = 0; row + r < m; ++r) inverse_rms<1>(x + r * ldx, ldx, k, eps, factors + r);
    }
  }
  return factors[row % kNormTogether];
}

void norm_rows(const float* x, int64_t ldx, int m, int k, const float* w, float add_one, float eps,
               ActRows* out, int out_row) {
  float factors[kNormTogether];
  RowNorm norm{w, set1(add_one), set1(1.0f)};
  if (out->kind == ActKind::kI8) {
    const auto values = [&](int row, int i, Vec& y0, Vec& y1) {
      if (i == 0 && w) norm.r = set1(row_factor(x + row * ldx, ldx, row, m, k, eps, factors));
      const float* at = x + row * ldx + i;
      y0 = normed(load(at), i, 16, norm);
      y1 = normed(load(at + 16), i + 16, 16, norm);
    };
    return quantize_rows(*out, out_row, 0, m, k, values);
  }
  for (int row = 0; row < m; ++row, x += ldx) {
    if (w) norm.r = set1(row_factor(x, ldx, row, m, k, eps, factors));
    const int64_t base = static_cast<int64_t>(out_row + row) * out->k;
    int i = 0;
    for (; i + 16 <= k; i += 16) store_act(out, base + i, normed(load(x + i), i, 16, norm), 16);
    if (i < k) store_act(out, base + i, normed(load_n(x + i, k - i), i, k - i, norm), k - i);
  }
}

void head_norm(float* x, int dim, const float* w, float add_one, float eps) {
  float factor;
  inverse_rms<1>(x, dim, dim, eps, &factor);
  const RowNorm norm{w, set1(add_one), set1(factor)};
  int i = 0;
  for (; i + 16 <= dim; i += 16) store(x + i, normed(load(x + i), i, 16, norm));
  if (i < dim) store_n(x + i, normed(load_n(x + i, dim - i), i, dim - i, norm), dim - i);
}

void rope(float* x, const RopeTable* table, int32_t position) {
  const int half = table->dim / 2;
  const float* cos = table->cos + static_cast<int64_t>(position) * half;
  const float* sin = table->sin + static_cast<int64_t>(position) * half;
  if (table->interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = __builtin_fmaf(a, cos[i], -(b * sin[i]));
      x[2 * i + 1] = __builtin_fmaf(b, cos[i], a * sin[i]);
    }
    return;
  }
  for (int i = 0; i < half; i += 16) {
    const int n = half - i < 16 ? half - i : 16;
    const Vec a = load_n(x + i, n);
    const Vec b = load_n(x + half + i, n);
    const Vec c = load_n(cos + i, n);
    const Vec s = load_n(sin + i, n);
    store_n(x + i, fma(a, c, neg(mul(b, s))), n);
    store_n(x + half + i, fma(b, c, mul(a, s)), n);
  }
}

static void write_i8(const KVLayout& layout, uint8_t* head, int offset, const float* k,
                     const float* v) {
  const int dim = layout.head_dim;
  const float k_scale = head_scale(k, dim);
  const float v_scale = head_scale(v, dim);
  const Divisor k_by = divisor_of(k_scale), v_by = divisor_of(v_scale);
  uint8_t* k_tile = head + static_cast<size_t>(offset / kLanes) * kLanes * dim;
  uint8_t* v_tile = head + layout.v_offset + static_cast<size_t>(offset / kLanes) * kLanes * dim;
  const int quad = offset % kLanes / 4, in_quad = offset % 4;
  for (int i = 0; i < dim; i += 16) {
    const int n = dim - i < 16 ? dim - i : 16;
    uint8_t q[16];
    store_u8(q, iadd(quantize16(load_n(k + i, n), k_by), iset1(kKeyZero)));
    for (int j = 0; j < n; j += 4) {
      __builtin_memcpy(k_tile + ((i + j) / 4 * kLanes + offset % kLanes) * 4, q + j, 4);
    }
    uint8_t* chunk = v_tile + i * kLanes + quad * n * 4;
    store_i8_in_quads(chunk, in_quad, quantize16(load_n(v + i, n), v_by), n);
  }
  reinterpret_cast<float*>(head + layout.k_scale_offset)[offset] = k_scale;
  reinterpret_cast<float*>(head + layout.v_scale_offset)[offset] = v_scale;
}

static void write_bf16(const KVLayout& layout, uint8_t* head, int offset, const float* k,
                       const float* v) {
  const int dim = layout.head_dim;
  uint8_t* k_tile = head + static_cast<size_t>(offset / kLanes) * kLanes * dim * 2;
  uint16_t* v_row = reinterpret_cast<uint16_t*>(head + layout.v_offset) + offset * dim;
  for (int i = 0; i < dim; i += 16) {
    const int n = dim - i < 16 ? dim - i : 16;
    uint16_t b[16];
    store_bf16_n(b, load_n(k + i, n), n);
    for (int j = 0; j < n; j += 2) {
      __builtin_memcpy(k_tile + ((i + j) / 2 * kLanes + offset % kLanes) * 4, b + j, 4);
    }
    store_bf16_n(v_row + i, load_n(v + i, n), n);
  }
}

static void write_f32(const KVLayout& layout, uint8_t* head, int offset, const float* k,
                      const float* v) {
  const int dim = layout.head_dim;
  float* k_tile = reinterpret_cast<float*>(head) +
                  static_cast<size_t>(offset / kLanes) * kLanes * dim + offset % kLanes;
  float* v_row = reinterpret_cast<float*>(head + layout.v_offset) + offset * dim;
  for (int i = 0; i < dim; ++i) {
    k_tile[i * kLanes] = k[i];
    v_row[i] = v[i];
  }
}

void kv_write(const KVLayout* layout, uint8_t* kv, int64_t slot, int head, const float* k,
              const float* v) {
  const int64_t block = slot / layout->block_size;
  const int offset = static_cast<int>(slot % layout->block_size);
  uint8_t* base = kv + static_cast<size_t>(block) * layout->block_stride +
                  static_cast<size_t>(head) * layout->head_stride;
  switch (layout->dtype) {
    case KVDtype::kF32: return write_f32(*layout, base, offset, k, v);
    case KVDtype::kBF16: return write_bf16(*layout, base, offset, k, v);
    case KVDtype::kI8: return write_i8(*layout, base, offset, k, v);
  }
}

void silu_mul(const float* gate, const float* up, int64_t ld, int m, int n, ActRows* out,
              int out_row, int col) {
  if (out->kind == ActKind::kI8) {
    const auto values = [&](int row, int i, Vec& y0, Vec& y1) {
      const int64_t at = row * ld + i;
      y0 = mul(silu(load(gate + at)), load(up + at));
      y1 = mul(silu(load(gate + at + 16)), load(up + at + 16));
    };
    return quantize_rows(*out, out_row, col, m, n, values);
  }
  for (int row = 0; row < m; ++row, gate += ld, up += ld) {
    const int64_t base = static_cast<int64_t>(out_row + row) * out->k + col;
    for (int i = 0; i < n; i += 16) {
      const int w = n - i < 16 ? n - i : 16;
      store_act(out, base + i, mul(silu(load_n(gate + i, w)), load_n(up + i, w)), w);
    }
  }
}

// max() gives its second operand where one is NaN, so a NaN never enters `largest`.
void block_maxima(const float* x, int64_t ldx, int m, int n, float* maxima, int64_t ldm) {
  const Vec nothing = set1(-__builtin_inff());
  for (int row = 0; row < m; ++row, x += ldx, maxima += ldm) {
    for (int i = 0; i < n; i += kLogitBlock) {
      Vec largest = nothing;
      const int stop = n - i < kLogitBlock ? n : i + kLogitBlock;
      int at = i;
      for (; at + 16 <= stop; at += 16) largest = max(load(x + at), largest);
      if (at < stop) {
        const int rest = stop - at;
        largest = max(select_lanes(0, rest, load_n(x + at, rest), nothing), largest);
      }
      const float whole = fold_max(largest);
      maxima[i / kLogitBlock] = (whole < __FLT_MAX__ ? whole : __FLT_MAX__) + 0.0f;
    }
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
