// The inner loops of attention over an int8 cache: scores and values as exact integer dot products.
// Included by attention_impl.h. Queries go in fixed groups of 8 through a whole split (scores,
// softmax, values), so that their scores stay in L1 and K and V in L2.
namespace octavo {
namespace OCTAVO_ISA {

// Register tiles: queries x K tiles for scores, queries x 16-column chunks for values.
constexpr int kDotQueries = kWide ? 8 : 3;
constexpr int kDotTiles = kWide ? 2 : 1;
constexpr int kSumQueries = kWide ? 4 : 2;
constexpr int kSumChunks = kWide ? 2 : 1;
// Up to this many queries a chunk more fits.
constexpr int kFewQueries = kWide ? 3 : 1;
constexpr int kFewChunks = kWide ? 4 : 2;
// A group of probabilities that are all below this counts as zeros: 255 / 1e-30 is still a float.
constexpr float kLeastWeight = 1e-30f;

// A group's queries and the results of one split, in the thread's scratch.
struct Int8Group {
  Query* queries;
  int count;
  int32_t* q;      // [dim / 4][kQueryGroup] quads of int8
  float* p;        // [kQueryGroup][kSplit] scores, then weights p * v_scale
  uint8_t* weights;  // [kQueryGroup][kSplit] weights as multiples of their tile's scale
  float* scales;     // [kQueryGroup][kSplit / 16]
  int first, last;   // tiles some query sees
};

static inline IVec broadcast_quad(const void* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, 4);
  return iset1(quad);
}

// Quantizes a query into column `slot` of its group.
static void quantize_query(Query& query, int dim, float scale, int32_t* group, int slot) {
  const float q_scale = head_scale(query.q, dim);
  const Divisor by = divisor_of(q_scale);
  IVec sum = iset1(0);
  for (int d = 0; d < dim; d += 16) {
    const int n = dim - d < 16 ? dim - d : 16;
    const IVec q = quantize16(load_n(query.q + d, n), by);
    sum = iadd(sum, q);
    int8_t bytes[16];
    store_i8_n(bytes, q, 16);
    for (int j = 0; j < n; j += 4) {
      __builtin_memcpy(group + (d + j) / 4 * kQueryGroup + slot, bytes + j, 4);
    }
  }
  query.score_sum = -kKeyZero * fold_iadd(sum);
  query.factor = q_scale * scale;
}

// Scores of queries first .. first + NQ - 1 against NT tiles. PF: also prefetches later K tiles, and
// V of these tiles, of which add_weighted will want all at once.
template <int NQ, int NT, bool PF>
static void dot_tiles(const Int8Group& group, int first, const Split& split, int tile, int dim) {
  IVec acc[NQ][NT];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 2
    for (int t = 0; t < NT; ++t) acc[i][t] = iset1(group.queries[first + i].score_sum);
  }
  const int32_t* q = group.q + first;
  for (int at = 0; at < dim * kLanes; at += 64, q += kQueryGroup) {
    UnsignedQuads k[NT];
#pragma GCC unroll 2
    for (int t = 0; t < NT; ++t) {
      k[t] = unsigned_quads(load_i32(split.k[tile + t] + at));
      if (PF) {
        __builtin_prefetch(split.k[tile + t + kTilesAhead] + at, 0, 2);
        __builtin_prefetch(split.v[tile + t] + at, 0, 2);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const SignedQuads b = signed_quads(broadcast_quad(q + i));
#pragma GCC unroll 2
      for (int t = 0; t < NT; ++t) acc[i][t] = dot4(acc[i][t], k[t], b);
    }
  }
#pragma GCC unroll 2
  for (int t = 0; t < NT; ++t) {
    const Vec k_scale = load(split.k_scale[tile + t]);
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const Vec s = mul(mul(to_float(acc[i][t]), k_scale), set1(group.queries[first + i].factor));
      store(group.p + (first + i) * kSplit + (tile + t) * kLanes, s);
    }
  }
}

template <int NQ, bool PF>
static void dot_range(const Int8Group& group, int first, const Split& split, int dim) {
  int tile = group.first;
  for (; tile + kDotTiles <= group.last; tile += kDotTiles) {
    dot_tiles<NQ, kDotTiles, PF>(group, first, split, tile, dim);
  }
  if (tile < group.last) dot_tiles<NQ, 1, PF>(group, first, split, tile, dim);
}

template <bool PF>
static void dot_some(const Int8Group& group, int first, int count, const Split& split, int dim) {
  switch (count) {
    case 8: return dot_range<kWide ? 8 : 1, PF>(group, first, split, dim);
    case 7: return dot_range<kWide ? 7 : 1, PF>(group, first, split, dim);
    case 6: return dot_range<kWide ? 6 : 1, PF>(group, first, split, dim);
    case 5: return dot_range<kWide ? 5 : 1, PF>(group, first, split, dim);
    case 4: return dot_range<kWide ? 4 : 1, PF>(group, first, split, dim);
    case 3: return dot_range<3, PF>(group, first, split, dim);
    case 2: return dot_range<2, PF>(group, first, split, dim);
    default: return dot_range<1, PF>(group, first, split, dim);
  }
}

// `prefetch`: nobody has read this split's K and V yet.
static void dot_scores(const Int8Group& group, const Split& split, int dim, bool prefetch) {
  for (int i = 0; i < group.count; i += kDotQueries) {
    const int n = group.count - i < kDotQueries ? group.count - i : kDotQueries;
    if (prefetch && i == 0) {
      dot_some<true>(group, i, n, split, dim);
    } else {
      dot_some<false>(group, i, n, split, dim);
    }
  }
}

// Scores of one query in tiles FIRST .. LAST - 1 to weights p * v_scale, with the maximum and sum of
// its probabilities. Only the first and the last of these tiles may be seen in part.
static inline void weigh_tiles(Query& query, const Split& split, float* p, int first, int last,
                               float softcap) {
  const int from = split.from(query), to = split.to(query);
  query.part_max = cap_and_mask(p, from, to, softcap);
  const Vec m = set1(query.part_max);
  Vec sum = set1(0.0f);
  for (int tile = first; tile < last; ++tile) {
    const Vec e = exp_nonpositive(sub(load(p + tile * kLanes), m));
    sum = add(sum, e);
    const Vec w = abs(mul(e, load(split.v_scale[tile])));
    store(p + tile * kLanes, w);
  }
  query.part_sum = fold_add(sum);
  // The scales of positions the query does not see may be anything.
  mask_tile(p, first, from, to, 0.0f);
  mask_tile(p, last - 1, from, to, 0.0f);
}

// Scores of one query to weights as multiples of their tile's scale.
static void weigh(Query& query, const Split& split, const Int8Group& group, int slot,
                  float softcap) {
  float* p = group.p + slot * kSplit;
  const bool seen = split.has(query);
  const int first = seen ? split.from(query) / kLanes : 0;
  const int last = seen ? (split.to(query) + kLanes - 1) / kLanes : 0;
  if (seen) weigh_tiles(query, split, p, first, last, softcap);
  // Tiles that others of the group see; what lies in the rest is never read.
  for (int tile = group.first; tile < group.last; ++tile) {
    if (tile < first || tile >= last) store(p + tile * kLanes, set1(0.0f));
  }
  const Vec largest = max(set1(kLeastWeight), as_float(row_imax(p)));
  float inverse[kSplit / kLanes];
  store(inverse, div(set1(255.0f), largest));
  store(group.scales + slot * (kSplit / kLanes), div(largest, set1(255.0f)));
  uint8_t* weights = group.weights + slot * kSplit;
  const int end = group.last;
  for (int tile = group.first; tile < end; ++tile) {
    const Vec w = mul(load(p + tile * kLanes), set1(inverse[tile]));
    store_u8(weights + tile * kLanes, round_to_int(max(w, set1(0.0f))));
  }
}

// part[d0 .. d0 + 16 DC) of NQ queries = the weighted sum of V over the group's tiles.
template <int NQ, int DC, bool TAIL>
static void add_weighted(const Int8Group& group, int first, const Split& split, int d0, int dim) {
  const int lanes = TAIL ? dim - d0 : 16;
  Vec sum[NQ][DC];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < DC; ++c) sum[i][c] = set1(0.0f);
  }
  const uint8_t* weights = group.weights + first * kSplit;
  const float* scales = group.scales + first * (kSplit / kLanes);
  for (int tile = group.first; tile < group.last; ++tile) {
    const uint8_t* v = split.v[tile] + d0 * kLanes;
    IVec acc[NQ][DC];
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < DC; ++c) acc[i][c] = iset1(0);
    }
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
      SignedQuads row[DC];
#pragma GCC unroll 4
      for (int c = 0; c < DC; ++c) {
        const uint8_t* at = v + c * 256 + quad * lanes * 4;
        row[c] = signed_quads(
            TAIL ? as_int(load_n(reinterpret_cast<const float*>(at), lanes)) : load_i32(at));
      }
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) {
        const UnsignedQuads b =
            unsigned_quads(broadcast_quad(weights + i * kSplit + tile * kLanes + quad * 4));
#pragma GCC unroll 4
        for (int c = 0; c < DC; ++c) acc[i][c] = dot4(acc[i][c], b, row[c]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const Vec scale = set1(scales[i * (kSplit / kLanes) + tile]);
#pragma GCC unroll 4
      for (int c = 0; c < DC; ++c) sum[i][c] = fma(scale, to_float(acc[i][c]), sum[i][c]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
    if (!split.has(group.queries[first + i])) continue;
#pragma GCC unroll 4
    for (int c = 0; c < DC; ++c) store(group.queries[first + i].part + d0 + 16 * c, sum[i][c]);
  }
}

template <int NQ, int DC>
static void add_columns(const Int8Group& group, int first, const Split& split, int dim) {
  int d0 = 0;
  for (; d0 + 16 * DC <= dim; d0 += 16 * DC) {
    add_weighted<NQ, DC, false>(group, first, split, d0, dim);
  }
  for (; d0 + 16 <= dim; d0 += 16) add_weighted<NQ, 1, false>(group, first, split, d0, dim);
  if (d0 < dim) add_weighted<NQ, 1, true>(group, first, split, d0, dim);
}

static void add_all_weighted(const Int8Group& group, const Split& split, int dim) {
  for (int i = 0; i < group.count;) {
    const int left = group.count - i;
    const int n = left < kSumQueries ? left : kSumQueries;
    switch (n) {
      case 4: add_columns<kWide ? 4 : 1, kSumChunks>(group, i, split, dim); break;
      case 3: add_columns<kWide ? 3 : 1, kFewChunks>(group, i, split, dim); break;
      case 2: add_columns<2, kWide ? kFewChunks : kSumChunks>(group, i, split, dim); break;
      default: add_columns<1, kFewChunks>(group, i, split, dim); break;
    }
    i += n;
  }
}

// One split for one group; false if none of its queries sees anything of it.
static bool int8_split(Int8Group& group, const Split& split, const AttentionArgs& args,
                       bool prefetch) {
  int from = kSplit, to = 0;
  for (int i = 0; i < group.count; ++i) {
    const Query& query = group.queries[i];
    if (!split.has(query)) continue;
    const int start = split.from(query), end = split.to(query);
    from = start < from ? start : from;
    to = end > to ? end : to;
  }
  if (from >= to) return false;
  group.first = from / kLanes;
  group.last = (to + kLanes - 1) / kLanes;
  dot_scores(group, split, args.layout->head_dim, prefetch);
  for (int i = 0; i < group.count; ++i) {
    weigh(group.queries[i], split, group, i, args.softcap);
  }
  add_all_weighted(group, split, args.layout->head_dim);
  return true;
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
