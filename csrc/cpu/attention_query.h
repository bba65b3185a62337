// What attention over any cache type shares: a query, the tiles of a split, and the merging of
// splits. Included by attention_impl.h.
namespace octavo {
namespace OCTAVO_ISA {

constexpr bool kWide = kVecRegisters >= 32;
// K tiles ahead that are prefetched (into L2) while scores are computed. Each is a run of 1 to 4 KiB
// somewhere else in memory, too short for the hardware to follow. 5 % of a decode step at 4,096
// tokens of context; into L1, or 8 tiles ahead, gained nothing.
constexpr int kTilesAhead = 4;

struct Query {
  const float* q;
  float* out;
  float* partials;  // of the first split kept; nullptr: merged at once
  float* p;         // [kSplit] scores, then probabilities, of the current split
  float* part;      // [dim rounded up to 16] o of the current split
  float* total;     // the same of all splits so far
  int start;        // positions start .. end - 1 take part
  int end;
  float factor;       // int8: of an integer score
  int32_t score_sum;  // int8: what an integer score starts from
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
  bool has(const Query& query) const { return from(query) < to(query); }
};

static const uint8_t* head_of(const AttentionArgs& args, int position) {
  const KVLayout& layout = *args.layout;
  return args.kv +
         static_cast<size_t>(args.block_table[position / layout.block_size]) * layout.block_stride +
         static_cast<size_t>(args.kv_head) * layout.head_stride;
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
    const uint8_t* head = head_of(args, position);
    split.k[tile] = head + offset / kLanes * tile_bytes;
    split.v[tile] = head + layout.v_offset + offset / kLanes * tile_bytes;
    split.k_scale[tile] = reinterpret_cast<const float*>(head + layout.k_scale_offset) + offset;
    split.v_scale[tile] = reinterpret_cast<const float*>(head + layout.v_scale_offset) + offset;
  }
  for (int tile = split.last; tile < split.last + kTilesAhead; ++tile) {
    const int position = base + tile * kLanes;
    split.k[tile] = position < end ? head_of(args, position) +
                                         position % layout.block_size / kLanes * tile_bytes
                                   : split.k[tile - 1];
  }
  return split;
}

// `outside` in those lanes of a tile that are not positions from .. to - 1.
static inline void mask_tile(float* values, int tile, int from, int to, float outside) {
  const int lane_from = from - tile * kLanes, lane_to = to - tile * kLanes;
  if (lane_from <= 0 && lane_to >= kLanes) return;
  float* p = values + tile * kLanes;
  store(p, select_lanes(lane_from > 0 ? lane_from : 0, lane_to < kLanes ? lane_to : kLanes, load(p),
                        set1(outside)));
}

// Scores of positions from .. to - 1 of a split, capped, with -inf in the other lanes of their
// tiles. Returns the highest.
static float cap_and_mask(float* scores, int from, int to, float softcap) {
  const int first = from / kLanes, last = (to + kLanes - 1) / kLanes;
  for (int tile = first; softcap != 0.0f && tile < last; ++tile) {
    float* s = scores + tile * kLanes;
    store(s, mul(set1(softcap), tanh(div(load(s), set1(softcap)))));
  }
  mask_tile(scores, first, from, to, -__builtin_inff());
  mask_tile(scores, last - 1, from, to, -__builtin_inff());
  Vec highest = set1(-__builtin_inff());
  for (int tile = first; tile < last; ++tile) {
    highest = max(highest, load(scores + tile * kLanes));
  }
  return fold_max(highest);
}

// Where the query's result of the split at `base` is kept.
static float* partial_row(const AttentionArgs& args, int base, const Query& query) {
  const int rows = args.members ? 1 : args.rows;
  const size_t stride = static_cast<size_t>(rows * args.group) *
                        partial_row_floats(args.layout->head_dim);
  return query.partials + static_cast<size_t>(base / kSplit - args.first_split) * stride;
}

static void set_up_query(const AttentionArgs& args, int index, Query& query) {
  const int row = index / args.group, head = index % args.group;
  const int dim = args.layout->head_dim;
  const size_t columns = static_cast<size_t>(head) * dim;
  const size_t partial = partial_row_floats(dim);
  query.started = false;
  if (args.members) {
    const AttentionMember& member = args.members[row];
    query.q = member.q + columns;
    query.out = nullptr;
    query.partials = member.partials + head * partial;
    query.end = member.position + 1;
  } else {
    query.q = args.q + row * args.q_stride + columns;
    query.out = args.out + row * args.out_stride + columns;
    query.partials = args.partials ? args.partials + index * partial : nullptr;
    query.end = args.first_position + row + 1;
  }
  query.start = args.window > 0 && query.end > args.window ? query.end - args.window : 0;
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

}  // namespace OCTAVO_ISA
}  // namespace octavo
