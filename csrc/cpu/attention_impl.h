// Paged causal attention of one KV head and its query group, written once over Vec; included by
// attention_<isa>.cc after vec_math.h. Knows nothing of threads, sequences or the plan.
//
// Arithmetic of one query (row, head); it depends on nothing else, whatever the tiling:
//   score(pos), f32 and bf16 cache: (sum over d ascending of fma(q[d], k[d], .)) * scale
//   score(pos), int8 cache: the query becomes int8 like a key (scale absmax / 127, quantize.h);
//     (float(exact integer dot) * k_scale(pos)) * (q_scale * scale)
//   then, with a softcap, softcap * tanh(score / softcap)
//   inside each absolute split of 256 positions (only positions the query may see take part):
//     m = max of the scores; p = exp(score - m), 0 below exp(-87)
//     l = fold16 of p (lane = pos % 16, ascending)
//     f32 and bf16 cache: o[d] = sum over positions ascending of fma(p, v[d], .)
//     int8 cache, for each absolute tile of 16 positions ascending:
//       w = |p * v_scale(pos)|, 0 where the query sees nothing; g = max(1e-30, largest w)
//       u = rint(max(w * (255 / g), 0)), 0 .. 255
//       o[d] = fma(g / 255, float(exact integer dot of u and v[d]), o[d])
//   splits merged in ascending order, at once or from stored partials, the first one as it is:
//     M' = max(M, m); a = exp(M - M'); b = exp(m - M')
//     L = fma(L, a, l * b); O[d] = fma(O[d], a, o[d] * b)
//   out[d] = O[d] / L
// Two phases per split (Milakov & Gimelshein, arXiv:1805.02867, blocked), so nothing is rescaled
// inside a split.
#include "cpu/isa_kernels.h"
#include "cpu/quantize.h"
#include "cpu/attention_query.h"
#include "cpu/attention_float.h"
#include "cpu/attention_int8.h"

namespace octavo {
namespace OCTAVO_ISA {

static float* aligned_scratch(const AttentionArgs& args) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(args.scratch);
  return args.scratch + (64 - address % 64) % 64 / 4;
}

// Up to kAttentionQueries consecutive (row, head) pairs, and the splits they go through.
struct QueryBlock {
  Query queries[kAttentionQueries];
  int count;
  int lowest, highest;  // positions lowest .. highest - 1 are seen by some query
  int begin, end;       // positions of the splits to compute
};

static void set_up_block(const AttentionArgs& args, int first, int count, float* totals,
                         QueryBlock& block) {
  const int padded = round_up(args.layout->head_dim, 16);
  block.count = count;
  for (int i = 0; i < count; ++i) {
    Query& query = block.queries[i];
    set_up_query(args, first + i, query);
    query.part = totals + 2 * i * padded;
    query.total = query.part + padded;
    if (i == 0 || query.start < block.lowest) block.lowest = query.start;
    if (i == 0 || query.end > block.highest) block.highest = query.end;
  }
  block.begin = block.lowest / kSplit * kSplit;
  block.end = block.highest;
  if (args.partials || args.members) {
    block.begin = block.begin > args.begin_split * kSplit ? block.begin : args.begin_split * kSplit;
    block.end = block.end < args.end_split * kSplit ? block.end : args.end_split * kSplit;
  }
  // What follows the shared splits of members is not in the table.
  if (args.members && block.highest > block.end) block.highest = block.end;
}

static Split locate(const AttentionArgs& args, const QueryBlock& block, int base) {
  const int from = block.lowest > base ? block.lowest - base : 0;
  const int to = block.highest - base < kSplit ? block.highest - base : kSplit;
  return locate_split(args, base, from, to, block.highest);
}

// Where the split's result goes: the caller's partials, or merged into the query's total.
static void aim(const AttentionArgs& args, int base, Query& query) {
  if (query.partials) query.part = partial_row(args, base, query) + kLanes;
}

static void keep(Query& query, int dim) {
  if (!query.partials) return merge_split(query, dim);
  query.part[-kLanes] = query.part_max;
  query.part[1 - kLanes] = query.part_sum;
}

template <KVDtype DT>
static void attend_float(const AttentionArgs& args, QueryBlock& block, float* scratch) {
  for (int i = 0; i < block.count; ++i) block.queries[i].p = scratch + i * kSplit;
  for (int base = block.begin; base < block.end; base += kSplit) {
    const Split split = locate(args, block, base);
    Query* active[kAttentionQueries];
    int n = 0;
    for (int i = 0; i < block.count; ++i) {
      if (!split.has(block.queries[i])) continue;
      active[n++] = block.queries + i;
      aim(args, base, block.queries[i]);
    }
    float_split<DT>(active, n, split, args);
    for (int i = 0; i < n; ++i) keep(*active[i], args.layout->head_dim);
  }
}

static void attend_int8(const AttentionArgs& args, QueryBlock& block, float* scratch) {
  const int dim = args.layout->head_dim;
  constexpr int kGroups = (kAttentionQueries + kQueryGroup - 1) / kQueryGroup;
  Int8Group groups[kGroups];
  const int count = (block.count + kQueryGroup - 1) / kQueryGroup;
  for (int g = 0; g < count; ++g) {
    Int8Group& group = groups[g];
    const int left = block.count - g * kQueryGroup;
    group.queries = block.queries + g * kQueryGroup;
    group.count = left < kQueryGroup ? left : kQueryGroup;
    group.p = scratch;
    group.scales = group.p + kQueryGroup * kSplit;
    group.weights = reinterpret_cast<uint8_t*>(group.scales + kQueryGroup * (kSplit / kLanes));
    group.q = reinterpret_cast<int32_t*>(group.weights + kQueryGroup * kSplit) +
              g * kQueryGroup * (dim / 4);
    for (int i = 0; i < group.count; ++i) {
      quantize_query(group.queries[i], dim, args.scale, group.q, i);
    }
  }
  for (int base = block.begin; base < block.end; base += kSplit) {
    const Split split = locate(args, block, base);
    bool fresh = true;
    for (int g = 0; g < count; ++g) {
      Int8Group& group = groups[g];
      for (int i = 0; i < group.count; ++i) aim(args, base, group.queries[i]);
      if (!int8_split(group, split, args, fresh)) continue;
      fresh = false;
      for (int i = 0; i < group.count; ++i) {
        if (split.has(group.queries[i])) keep(group.queries[i], dim);
      }
    }
  }
}

void attention(const AttentionArgs* args) {
  float* scratch = aligned_scratch(*args);
  const int total = args->rows * args->group;
  for (int first = 0; first < total; first += kAttentionQueries) {
    const int left = total - first;
    QueryBlock block;
    const int count = left < kAttentionQueries ? left : kAttentionQueries;
    float* totals = scratch + attention_working_floats(count, args->layout->head_dim);
    set_up_block(*args, first, count, totals, block);
    switch (args->layout->dtype) {
      case KVDtype::kF32: attend_float<KVDtype::kF32>(*args, block, scratch); break;
      case KVDtype::kBF16: attend_float<KVDtype::kBF16>(*args, block, scratch); break;
      case KVDtype::kI8: attend_int8(*args, block, scratch); break;
    }
    if (args->partials || args->members) continue;
    for (int i = 0; i < count; ++i) finish_query(block.queries[i], args->layout->head_dim);
  }
}

void attention_merge(const AttentionArgs* args) {
  const int dim = args->layout->head_dim;
  for (int i = 0; i < args->rows * args->group; ++i) {
    Query query;
    set_up_query(*args, i, query);
    query.total = aligned_scratch(*args);
    for (int base = query.start / kSplit * kSplit; base < query.end; base += kSplit) {
      query.part = partial_row(*args, base, query) + kLanes;
      query.part_max = query.part[-kLanes];
      query.part_sum = query.part[1 - kLanes];
      merge_split(query, dim);
    }
    finish_query(query, dim);
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
