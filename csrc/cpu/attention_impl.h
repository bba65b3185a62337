// Paged causal attention of one KV head and its query group, written once over Vec; included by
// attention_<isa>.cc after vec_math.h. Knows nothing of threads, sequences or the plan.
//
// Arithmetic of one query (row, head); it depends on nothing else, whatever the tiling:
//   score(pos) = (sum over d ascending of fma(q[d], k[d], .)) [* k_scale(pos)] * scale
//                then, with a softcap, softcap * tanh(score / softcap)
//   inside each absolute split of 256 positions (only positions the query may see take part):
//     m = max of the scores; p = exp(score - m), 0 below exp(-87)
//     l = fold16 of p (lane = pos % 16, ascending)
//     o[d] = sum over positions ascending of fma(p', v[d], .), p' = p [* v_scale(pos)]
//   splits merged in ascending order, at once or from stored partials, the first one as it is:
//     M' = max(M, m); a = exp(M - M'); b = exp(m - M')
//     L = fma(L, a, l * b); O[d] = fma(O[d], a, o[d] * b)
//   out[d] = O[d] / L
// [..] int8 only. Two phases per split (Milakov & Gimelshein, arXiv:1805.02867, blocked), so nothing
// is rescaled inside a split.
#include "cpu/isa_kernels.h"

namespace octavo {
namespace OCTAVO_ISA {

// Register tiles. Scores: queries x K tiles; values: queries x 16-column chunks. The accumulators
// fill about three quarters of the registers. Results do not depend on them.
constexpr bool kWide = kVecRegisters >= 32;
constexpr int kScoreQueries = kWide ? 8 : 4;
constexpr int kScoreTiles = kWide ? 2 : 1;
constexpr int kValueQueries = kWide ? 6 : 3;
constexpr int kValueChunks = kWide ? 4 : 2;
// K tiles ahead that are prefetched (into L2) while scores are computed. Each is a run of 1 to 4 KiB
// somewhere else in memory, too short for the hardware to follow. 5 % of a decode step at 4,096
// tokens of context; into L1, or 8 tiles ahead, gained nothing.
constexpr int kTilesAhead = 4;

struct Query {
  const float* q;
  float* out;
  float* p;      // [kSplit] scores, then probabilities, of the current split
  float* part;   // [dim rounded up to 16] o of the current split
  float* total;  // the same of all splits so far
  int index;     // row * group + head
  int start;     // positions start .. end - 1 take part
  int end;
  float part_max, part_sum, max, sum;
  bool started;
};

// One split of 256 positions as 16 tiles of 16; only tiles first .. last - 1 are in use. K tiles are
// known up to kTilesAhead further on, for prefetching; the last of them may be repeated.
struct Split {
  int base;
  int first, last;
  const uint8_t* k[kSplit / kLanes + kTilesAhead];
  const uint8_t* v[kSplit / kLanes];
  const float* k_scale[kSplit / kLanes];
  const float* v_scale[kSplit / kLanes];

  int from(const Query& query) const { return query.start > base ? query.start - base : 0; }
  int to(const Query& query) const {
    return query.end - base < kSplit ? query.end - base : kSplit;
  }
};

template <KVDtype DT>
constexpr int element_bytes() {
  return DT == KVDtype::kF32 ? 4 : DT == KVDtype::kBF16 ? 2 : 1;
}

// Element j of the 4 bytes each lane holds.
template <KVDtype DT>
static inline Vec unpack_k(IVec raw, int j) {
  if (DT == KVDtype::kF32) return as_float(raw);
  if (DT == KVDtype::kBF16) {
    return as_float(j == 0 ? shift_left<16>(raw) : iand(raw, iset1(-65536)));
  }
  switch (j) {
    case 0: return to_float(shift_right_signed<24>(shift_left<24>(raw)));
    case 1: return to_float(shift_right_signed<24>(shift_left<16>(raw)));
    case 2: return to_float(shift_right_signed<24>(shift_left<8>(raw)));
    default: return to_float(shift_right_signed<24>(raw));
  }
}

template <KVDtype DT>
static inline Vec load_v(const uint8_t* p, int n) {
  if (DT == KVDtype::kF32) {
    const float* f = reinterpret_cast<const float*>(p);
    return n == 16 ? load(f) : load_n(f, n);
  }
  if (DT == KVDtype::kBF16) {
    const uint16_t* b = reinterpret_cast<const uint16_t*>(p);
    return n == 16 ? load_bf16(b) : load_bf16_n(b, n);
  }
  const int8_t* i8 = reinterpret_cast<const int8_t*>(p);
  return n == 16 ? load_i8(i8) : load_i8_n(i8, n);
}

// Scores of NQ queries against NT tiles; K is loaded and widened once for all of them. PF: also
// prefetches later K tiles, and V of these tiles, of which add_values will want all at once.
template <KVDtype DT, int NQ, int NT, bool PF>
static void score_tiles(Query* const* queries, const Split& split, int tile,
                        const AttentionArgs& args) {
  constexpr int kPack = 4 / element_bytes<DT>();
  Vec acc[NQ][NT];
  const float* q[NQ];
#pragma GCC unroll 16
  for (int i = 0; i < NQ; ++i) {
    q[i] = queries[i]->q;
#pragma GCC unroll 2
    for (int t = 0; t < NT; ++t) acc[i][t] = set1(0.0f);
  }
  const int dim = args.layout->head_dim;
  for (int d = 0; d < dim; d += kPack) {
    IVec raw[NT];
#pragma GCC unroll 2
    for (int t = 0; t < NT; ++t) {
      const int at = d / kPack * 64;  // K and V of a tile are dim / kPack lines each
      raw[t] = load_i32(split.k[tile + t] + at);
      if (PF) {
        __builtin_prefetch(split.k[tile + t + kTilesAhead] + at, 0, 2);
        __builtin_prefetch(split.v[tile + t] + at, 0, 2);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kPack; ++j) {
      Vec k[NT];
#pragma GCC unroll 2
      for (int t = 0; t < NT; ++t) k[t] = unpack_k<DT>(raw[t], j);
#pragma GCC unroll 16
      for (int i = 0; i < NQ; ++i) {
        const Vec b = set1(q[i][d + j]);
#pragma GCC unroll 2
        for (int t = 0; t < NT; ++t) acc[i][t] = fma(b, k[t], acc[i][t]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 2
    for (int t = 0; t < NT; ++t) {
      Vec s = acc[i][t];
      if (DT == KVDtype::kI8) s = mul(s, load(split.k_scale[tile + t]));
      store(queries[i]->p + (tile + t) * kLanes, mul(s, set1(args.scale)));
    }
  }
}

template <KVDtype DT, int NQ, bool PF>
static void score_group(Query* const* queries, const Split& split, const AttentionArgs& args) {
  int from = kSplit, to = 0;
  for (int i = 0; i < NQ; ++i) {
    const int start = split.from(*queries[i]), end = split.to(*queries[i]);
    from = start < from ? start : from;
    to = end > to ? end : to;
  }
  int tile = from / kLanes;
  const int last = (to + kLanes - 1) / kLanes;
  for (; tile + kScoreTiles <= last; tile += kScoreTiles) {
    score_tiles<DT, NQ, kScoreTiles, PF>(queries, split, tile, args);
  }
  if (tile < last) score_tiles<DT, NQ, 1, PF>(queries, split, tile, args);
}

// The first group of queries finds K and V in memory, the others in the cache.
template <KVDtype DT, bool PF>
static int score_some(Query* const* queries, int count, const Split& split,
                      const AttentionArgs& args) {
  const int n = kWide && count >= 8 ? 8 : kWide && count >= 6 ? 6 : count >= 4 ? 4 : count;
  switch (n) {
    case 8: score_group<DT, kScoreQueries, PF>(queries, split, args); break;
    case 6: score_group<DT, kWide ? 6 : 1, PF>(queries, split, args); break;
    case 4: score_group<DT, 4, PF>(queries, split, args); break;
    case 3: score_group<DT, 3, PF>(queries, split, args); break;
    case 2: score_group<DT, 2, PF>(queries, split, args); break;
    default: score_group<DT, 1, PF>(queries, split, args); break;
  }
  return n;
}

template <KVDtype DT>
static void score_all(Query* const* queries, int count, const Split& split,
                      const AttentionArgs& args) {
  int done = score_some<DT, true>(queries, count, split, args);
  while (done < count) done += score_some<DT, false>(queries + done, count - done, split, args);
}

// Scores to probabilities of one split, with their maximum and sum.
static void softmax_split(Query& query, const Split& split, float softcap, bool scale_v) {
  const int from = split.from(query), to = split.to(query);
  const int first = from / kLanes, last = (to + kLanes - 1) / kLanes;
  Vec highest = set1(-__builtin_inff());
  for (int tile = first; tile < last; ++tile) {
    float* p = query.p + tile * kLanes;
    Vec s = load(p);
    if (softcap != 0.0f) s = mul(set1(softcap), tanh(div(s, set1(softcap))));
    const int lane_from = from - tile * kLanes, lane_to = to - tile * kLanes;
    if (lane_from > 0 || lane_to < kLanes) {
      s = select_lanes(lane_from > 0 ? lane_from : 0, lane_to < kLanes ? lane_to : kLanes, s,
                       set1(-__builtin_inff()));
    }
    store(p, s);
    highest = max(highest, s);
  }
  query.part_max = fold_max(highest);
  const Vec m = set1(query.part_max);
  Vec sum = set1(0.0f);
  for (int tile = first; tile < last; ++tile) {
    float* p = query.p + tile * kLanes;
    Vec e = exp_nonpositive(sub(load(p), m));
    sum = add(sum, e);
    if (scale_v) e = mul(e, load(split.v_scale[tile]));
    store(p, e);
  }
  query.part_sum = fold_add(sum);
}

// part[d0 .. d0 + 16 DC) += p V over split positions from .. to - 1, for NQ queries at once.
template <KVDtype DT, int NQ, int DC, bool TAIL>
static void add_values(Query* const* queries, const Split& split, int from, int to, int d0,
                       int dim) {
  const int lanes = TAIL ? dim - d0 : 16;
  const size_t row_bytes = static_cast<size_t>(dim) * element_bytes<DT>();
  Vec acc[NQ][DC];
  const float* p[NQ];
#pragma GCC unroll 16
  for (int i = 0; i < NQ; ++i) {
    p[i] = queries[i]->p;
#pragma GCC unroll 4
    for (int c = 0; c < DC; ++c) acc[i][c] = load(queries[i]->part + d0 + 16 * c);
  }
  while (from < to) {
    const int tile = from / kLanes;
    const int end = to < (tile + 1) * kLanes ? to : (tile + 1) * kLanes;
    const uint8_t* v = split.v[tile] + (from % kLanes) * row_bytes + d0 * element_bytes<DT>();
    for (; from < end; ++from, v += row_bytes) {
      Vec row[DC];
#pragma GCC unroll 4
      for (int c = 0; c < DC; ++c) row[c] = load_v<DT>(v + 16 * c * element_bytes<DT>(), lanes);
#pragma GCC unroll 16
      for (int i = 0; i < NQ; ++i) {
        const Vec b = set1(p[i][from]);
#pragma GCC unroll 4
        for (int c = 0; c < DC; ++c) acc[i][c] = fma(b, row[c], acc[i][c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < DC; ++c) store(queries[i]->part + d0 + 16 * c, acc[i][c]);
  }
}

template <KVDtype DT, int NQ>
static void add_values_range(Query* const* queries, const Split& split, int from, int to,
                             int dim) {
  if (from >= to) return;
  int d0 = 0;
  constexpr int kWidth = kValueChunks * 16;
  for (; d0 + kWidth <= dim; d0 += kWidth) {
    add_values<DT, NQ, kValueChunks, false>(queries, split, from, to, d0, dim);
  }
  for (; d0 + 32 <= dim; d0 += 32) {
    add_values<DT, NQ, 2, false>(queries, split, from, to, d0, dim);
  }
  for (; d0 + 16 <= dim; d0 += 16) {
    add_values<DT, NQ, 1, false>(queries, split, from, to, d0, dim);
  }
  if (d0 < dim) add_values<DT, NQ, 1, true>(queries, split, from, to, d0, dim);
}

// The positions all NQ queries see go together; what only some see (the causal edge, the window's
// start) goes one query at a time, so that no query ever touches a V row it may not read.
template <KVDtype DT, int NQ>
static void add_values_group(Query* const* queries, const Split& split, int dim) {
  int from = 0, to = kSplit;
  for (int i = 0; i < NQ; ++i) {
    const int start = split.from(*queries[i]), end = split.to(*queries[i]);
    from = start > from ? start : from;
    to = end < to ? end : to;
  }
  if (from > to) from = to = kSplit;  // nothing in common: all goes to the prefix loop
  for (int i = 0; i < NQ; ++i) {
    const int end = split.to(*queries[i]);
    const int stop = from < end ? from : end;
    add_values_range<DT, 1>(queries + i, split, split.from(*queries[i]), stop, dim);
  }
  add_values_range<DT, NQ>(queries, split, from, to, dim);
  for (int i = 0; i < NQ; ++i) {
    add_values_range<DT, 1>(queries + i, split, to, split.to(*queries[i]), dim);
  }
}

template <KVDtype DT>
static void add_values_all(Query* const* queries, int count, const Split& split, int dim) {
  while (count > 0) {
    const int n = kWide && count >= 6 ? 6 : kWide && count >= 4 ? 4 : count >= 3 ? 3 : count;
    switch (n) {
      case 6: add_values_group<DT, kValueQueries>(queries, split, dim); break;
      case 4: add_values_group<DT, kWide ? 4 : 1>(queries, split, dim); break;
      case 3: add_values_group<DT, 3>(queries, split, dim); break;
      case 2: add_values_group<DT, 2>(queries, split, dim); break;
      default: add_values_group<DT, 1>(queries, split, dim); break;
    }
    queries += n;
    count -= n;
  }
}

static void merge_split(Query& query, int dim) {
  const int padded = round_up(dim, 16);
  if (!query.started) {
    query.started = true;
    query.max = query.part_max;
    query.sum = query.part_sum;
    for (int d = 0; d < padded; d += 16) store(query.total + d, load(query.part + d));
    return;
  }
  const float highest = query.max > query.part_max ? query.max : query.part_max;
  const Vec a = exp_nonpositive(set1(query.max - highest));
  const Vec b = exp_nonpositive(set1(query.part_max - highest));
  query.max = highest;
  query.sum = __builtin_fmaf(query.sum, first_lane(a), query.part_sum * first_lane(b));
  for (int d = 0; d < padded; d += 16) {
    store(query.total + d, fma(load(query.total + d), a, mul(load(query.part + d), b)));
  }
}

static void finish_query(const Query& query, int dim) {
  const Vec sum = set1(query.sum);
  for (int d = 0; d < dim; d += 16) {
    const int n = dim - d < 16 ? dim - d : 16;
    store_n(query.out + d, div(load(query.total + d), sum), n);
  }
}

// Tiles of positions from .. to - 1 after base; the sequence goes on until `end`.
static Split locate_split(const AttentionArgs& args, int base, int from, int to, int end) {
  const KVLayout& layout = *args.layout;
  const size_t element = layout.dtype == KVDtype::kF32 ? 4 : layout.dtype == KVDtype::kBF16 ? 2 : 1;
  const size_t tile_bytes = element * kLanes * static_cast<size_t>(layout.head_dim);
  Split split;
  split.base = base;
  split.first = from / kLanes;
  split.last = (to + kLanes - 1) / kLanes;
  for (int tile = split.first; tile < split.last; ++tile) {
    const int position = base + tile * kLanes;
    const int offset = position % layout.block_size;
    const uint8_t* head =
        args.kv +
        static_cast<size_t>(args.block_table[position / layout.block_size]) * layout.block_stride +
        static_cast<size_t>(args.kv_head) * layout.head_stride;
    split.k[tile] = head + offset / kLanes * tile_bytes;
    split.v[tile] = head + layout.v_offset + offset / kLanes * tile_bytes;
    split.k_scale[tile] = reinterpret_cast<const float*>(head + layout.k_scale_offset) + offset;
    split.v_scale[tile] = reinterpret_cast<const float*>(head + layout.v_scale_offset) + offset;
  }
  for (int tile = split.last; tile < split.last + kTilesAhead; ++tile) {
    const int position = base + tile * kLanes;
    split.k[tile] = split.k[tile - 1];
    if (position >= end) continue;
    split.k[tile] =
        args.kv +
        static_cast<size_t>(args.block_table[position / layout.block_size]) * layout.block_stride +
        static_cast<size_t>(args.kv_head) * layout.head_stride +
        position % layout.block_size / kLanes * tile_bytes;
  }
  return split;
}

// Where the query's result of the split at `base` is kept.
static float* partial_row(const AttentionArgs& args, int base, const Query& query) {
  const size_t split = static_cast<size_t>(base / kSplit - args.first_split);
  const size_t row = split * static_cast<size_t>(args.rows * args.group) + query.index;
  return args.partials + row * partial_row_floats(args.layout->head_dim);
}

static void set_up_query(const AttentionArgs& args, int index, Query& query) {
  query.index = index;
  const int row = index / args.group, head = index % args.group;
  const int dim = args.layout->head_dim;
  query.q = args.q + row * args.q_stride + static_cast<int64_t>(head) * dim;
  query.out = args.out + row * args.out_stride + static_cast<int64_t>(head) * dim;
  query.end = args.first_position + row + 1;
  query.start = args.window > 0 && query.end > args.window ? query.end - args.window : 0;
  query.started = false;
}

template <KVDtype DT>
static void attend_split(const AttentionArgs& args, Query* queries, int count, int base, int lowest,
                         int highest) {
  const int from = lowest > base ? lowest - base : 0;
  const int to = highest - base < kSplit ? highest - base : kSplit;
  const Split split = locate_split(args, base, from, to, highest);
  const int dim = args.layout->head_dim;
  Query* active[kAttentionQueries];
  int n = 0;
  for (int i = 0; i < count; ++i) {
    if (split.from(queries[i]) < split.to(queries[i])) active[n++] = queries + i;
  }
  if (args.partials) {
    for (int i = 0; i < n; ++i) active[i]->part = partial_row(args, base, *active[i]) + kLanes;
  }
  score_all<DT>(active, n, split, args);
  for (int i = 0; i < n; ++i) {
    softmax_split(*active[i], split, args.softcap, DT == KVDtype::kI8);
    for (int d = 0; d < dim; d += 16) store(active[i]->part + d, set1(0.0f));
  }
  add_values_all<DT>(active, n, split, dim);
  for (int i = 0; i < n; ++i) {
    if (args.partials) {
      active[i]->part[-kLanes] = active[i]->part_max;
      active[i]->part[1 - kLanes] = active[i]->part_sum;
    } else {
      merge_split(*active[i], dim);
    }
  }
}

// Up to kAttentionQueries consecutive (row, head) pairs.
template <KVDtype DT>
static void attend_queries(const AttentionArgs& args, int first, int count, float* scratch) {
  const int dim = args.layout->head_dim;
  const int padded = round_up(dim, 16);
  Query queries[kAttentionQueries];
  for (int i = 0; i < count; ++i) {
    set_up_query(args, first + i, queries[i]);
    queries[i].p = scratch + i * kSplit;
    queries[i].part = scratch + count * kSplit + 2 * i * padded;
    queries[i].total = queries[i].part + padded;
  }
  // Rows ascend, so the first query starts lowest and the last one ends highest.
  const int lowest = queries[0].start, highest = queries[count - 1].end;
  int begin = lowest / kSplit * kSplit, end = highest;
  if (args.partials) {
    begin = begin > args.begin_split * kSplit ? begin : args.begin_split * kSplit;
    end = end < args.end_split * kSplit ? end : args.end_split * kSplit;
  }
  for (int base = begin; base < end; base += kSplit) {
    attend_split<DT>(args, queries, count, base, lowest, highest);
  }
  if (args.partials) return;
  for (int i = 0; i < count; ++i) finish_query(queries[i], dim);
}

static float* aligned_scratch(const AttentionArgs& args) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(args.scratch);
  return args.scratch + (64 - address % 64) % 64 / 4;
}

template <KVDtype DT>
static void attend(const AttentionArgs& args) {
  float* scratch = aligned_scratch(args);
  const int total = args.rows * args.group;
  for (int first = 0; first < total; first += kAttentionQueries) {
    const int left = total - first;
    attend_queries<DT>(args, first, left < kAttentionQueries ? left : kAttentionQueries, scratch);
  }
}

void attention(const AttentionArgs* args) {
  switch (args->layout->dtype) {
    case KVDtype::kF32: return attend<KVDtype::kF32>(*args);
    case KVDtype::kBF16: return attend<KVDtype::kBF16>(*args);
    case KVDtype::kI8: return attend<KVDtype::kI8>(*args);
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
