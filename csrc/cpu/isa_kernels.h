// The kernel functions each ISA defines, by namespace. Only the kernel table and the kernels include
// this; contracts are in octavo/kernels.h.
#pragma once
#include "octavo/kernels.h"

#define OCTAVO_DECLARE_KERNELS                                                                    \
  void norm_rows(const float* x, int64_t ldx, int m, int k, const float* w, float add_one,        \
                 float eps, ActRows* out, int out_row);                                           \
  void head_norm(float* x, int dim, const float* w, float add_one, float eps);                    \
  void rope(float* x, const RopeTable* table, int32_t position);                                  \
  void kv_write(const KVLayout* layout, uint8_t* kv, int64_t slot, int head, const float* k,      \
                const float* v);                                                                  \
  void attention(const AttentionArgs* args);                                                      \
  void attention_merge(const AttentionArgs* args);                                                \
  void silu_mul(const float* gate, const float* up, int64_t ld, int m, int n, ActRows* out,       \
                int out_row, int col);                                                            \
  void block_maxima(const float* x, int64_t ldx, int m, int n, float* maxima, int64_t ldm);

namespace octavo {

// Query (row, head) pairs one attention tile holds: K and V are read once for all of them. 32
// queries x 256 scores are 32 KiB, which stay in L1/L2 beside a split's K and V.
constexpr int kAttentionQueries = 32;

// Those that go through a split of an int8 cache together: 8 KiB of scores.
constexpr int kQueryGroup = 8;

constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Floats of an attention call's scratch before its totals. A float cache wants the scores of all
// queries; an int8 one scores, tile scales and weights of a group, and all queries as int8.
constexpr size_t attention_working_floats(int queries, int head_dim) {
  const int grouped = kQueryGroup * (kSplit + kSplit / kLanes + kSplit / 4) +
                      round_up(queries, kQueryGroup) * (head_dim / 4);
  const int whole = queries * kSplit;
  return static_cast<size_t>(round_up(grouped > whole ? grouped : whole, 16));
}

namespace generic {
OCTAVO_DECLARE_KERNELS
}
namespace avx2 {
OCTAVO_DECLARE_KERNELS
}
namespace neon {
OCTAVO_DECLARE_KERNELS
}
namespace avx512 {
OCTAVO_DECLARE_KERNELS
}
}  // namespace octavo
