// The inner loops of attention over a float cache (f32, bf16): scores and values as fused
// multiply-adds. Included by attention_impl.h.
namespace octavo {
namespace OCTAVO_ISA {

// Register tiles. Scores: queries x K tiles; values: queries x 16-column chunks. The accumulators
// fill about three quarters of the registers. Results do not depend on them.
constexpr int kScoreQueries = kWide ? 8 : 4;
constexpr int kScoreTiles = kWide ? 2 : 1;
constexpr int kValueQueries = kWide ? 6 : 3;
constexpr int kValueChunks = kWide ? 4 : 2;

template <KVDtype DT>
constexpr int element_bytes() {
  return DT == KVDtype::kF32 ? 4 : 2;
}

// Element j of the 4 bytes each lane holds.
template <KVDtype DT>
static inline Vec unpack_k(IVec raw, int j) {
  if (DT == KVDtype::kF32) return as_float(raw);
  return as_float(j == 0 ? shift_left<16>(raw) : iand(raw, iset1(-65536)));
}

template <KVDtype DT>
static inline Vec load_v(const uint8_t* p, int n) {
  if (DT == KVDtype::kF32) {
    const float* f = reinterpret_cast<const float*>(p);
    return n == 16 ? load(f) : load_n(f, n);
  }
  const uint16_t* b = reinterpret_cast<const uint16_t*>(p);
  return n == 16 ? load_bf16(b) : load_bf16_n(b, n);
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
      store(queries[i]->p + (tile + t) * kLanes, mul(acc[i][t], set1(args.scale)));
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
static void softmax_split(Query& query, const Split& split, float softcap) {
  const int from = split.from(query), to = split.to(query);
  query.part_max = cap_and_mask(query.p, from, to, softcap);
  const Vec m = set1(query.part_max);
  Vec sum = set1(0.0f);
  for (int tile = from / kLanes; tile * kLanes < to; ++tile) {
    float* p = query.p + tile * kLanes;
    const Vec e = exp_nonpositive(sub(load(p), m));
    sum = add(sum, e);
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

template <KVDtype DT>
static void float_split(Query* const* queries, int count, const Split& split,
                        const AttentionArgs& args) {
  const int dim = args.layout->head_dim;
  score_all<DT>(queries, count, split, args);
  for (int i = 0; i < count; ++i) {
    softmax_split(*queries[i], split, args.softcap);
    for (int d = 0; d < dim; d += 16) store(queries[i]->part + d, set1(0.0f));
  }
  add_values_all<DT>(queries, count, split, dim);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
