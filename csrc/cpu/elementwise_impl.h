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

// Stores one group of 32 columns as int8 with its scale and sums.
static inline void store_group(ActRows* out, int row, int col, Vec y0, Vec y1) {
  const int64_t index = static_cast<int64_t>(row) * out->k + col;
  const int64_t group = static_cast<int64_t>(row) * (out->k / kQuantGroup) + col / kQuantGroup;
  const float scale = short_scale(scale_of(imax(magnitude_bits(y0), magnitude_bits(y1))));
  const IVec q0 = quantize16(y0, scale);
  const IVec q1 = quantize16(y1, scale);
  store_i8_n(out->q + index, q0, 16);
  store_i8_n(out->q + index + 16, q1, 16);
  const int32_t low = fold_iadd(q0);
  const int32_t sum = low + fold_iadd(q1);
  out->scale[group] = scale;
  out->isum[group] = sum;
  out->isum_low[group] = low;
  out->fsum[group] = scale * static_cast<float>(sum);
}

// 1 / sqrt(mean of squares + eps)
static inline float inverse_rms(const float* x, int k, float eps) {
  Vec acc = set1(0.0f);
  int i = 0;
  for (; i + 16 <= k; i += 16) {
    const Vec v = load(x + i);
    acc = fma(v, v, acc);
  }
  if (i < k) {
    const Vec v = load_n(x + i, k - i);
    acc = fma(v, v, acc);
  }
  const float mean = fold_add(acc) / static_cast<float>(k);
  return 1.0f / __builtin_sqrtf(mean + eps);
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

void norm_rows(const float* x, int64_t ldx, int m, int k, const float* w, float add_one, float eps,
               ActRows* out, int out_row) {
  for (int row = 0; row < m; ++row, x += ldx) {
    const RowNorm norm{w, set1(add_one), set1(w == nullptr ? 1.0f : inverse_rms(x, k, eps))};
    if (out->kind == ActKind::kI8) {
      for (int i = 0; i < k; i += kQuantGroup) {
        const Vec y0 = normed(load(x + i), i, 16, norm);
        const Vec y1 = normed(load(x + i + 16), i + 16, 16, norm);
        store_group(out, out_row + row, i, y0, y1);
      }
      continue;
    }
    const int64_t base = static_cast<int64_t>(out_row + row) * out->k;
    int i = 0;
    for (; i + 16 <= k; i += 16) store_act(out, base + i, normed(load(x + i), i, 16, norm), 16);
    if (i < k) store_act(out, base + i, normed(load_n(x + i, k - i), i, k - i, norm), k - i);
  }
}

void head_norm(float* x, int dim, const float* w, float add_one, float eps) {
  const RowNorm norm{w, set1(add_one), set1(inverse_rms(x, dim, eps))};
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
  uint8_t* k_tile = head + static_cast<size_t>(offset / kLanes) * kLanes * dim;
  uint8_t* v_tile = head + layout.v_offset + static_cast<size_t>(offset / kLanes) * kLanes * dim;
  const int quad = offset % kLanes / 4, in_quad = offset % 4;
  for (int i = 0; i < dim; i += 16) {
    const int n = dim - i < 16 ? dim - i : 16;
    uint8_t q[16];
    store_u8(q, iadd(quantize16(load_n(k + i, n), k_scale), iset1(kKeyZero)));
    for (int j = 0; j < n; j += 4) {
      __builtin_memcpy(k_tile + ((i + j) / 4 * kLanes + offset % kLanes) * 4, q + j, 4);
    }
    int8_t r[16];
    store_i8_n(r, quantize16(load_n(v + i, n), v_scale), 16);
    uint8_t* chunk = v_tile + i * kLanes + quad * n * 4 + in_quad;
    for (int j = 0; j < n; ++j) chunk[4 * j] = static_cast<uint8_t>(r[j]);
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
  for (int row = 0; row < m; ++row, gate += ld, up += ld) {
    if (out->kind == ActKind::kI8) {
      for (int i = 0; i < n; i += kQuantGroup) {
        const Vec y0 = mul(silu(load(gate + i)), load(up + i));
        const Vec y1 = mul(silu(load(gate + i + 16)), load(up + i + 16));
        store_group(out, out_row + row, col + i, y0, y1);
      }
      continue;
    }
    const int64_t base = static_cast<int64_t>(out_row + row) * out->k + col;
    for (int i = 0; i < n; i += 16) {
      const int w = n - i < 16 ? n - i : 16;
      store_act(out, base + i, mul(silu(load_n(gate + i, w)), load_n(up + i, w)), w);
    }
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
