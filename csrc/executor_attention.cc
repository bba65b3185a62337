// The attention phase: which units a step has, and what one of them does.
#include <algorithm>

#include "executor.h"
#include "executor_tuning.h"

namespace octavo {

void Executor::allocate_attention() {
  const size_t tiles =
      static_cast<size_t>(limits_.max_tokens / kAttentionRows + limits_.max_seqs + 1);
  for (const AttentionRecord& record : plan_.attention) {
    const KVLayout& layout = plan_.stores[record.store].layout;
    max_kv_heads_ = std::max(max_kv_heads_, static_cast<int>(layout.num_kv_heads));
    const size_t row = static_cast<size_t>(record.num_heads) * partial_row_floats(layout.head_dim);
    partial_row_ = std::max(partial_row_, row);
  }
  for (const AttentionRecord& record : plan_.attention) {
    size_t i = 0;
    while (i < attention_work_.size() && attention_work_[i].window != record.window) ++i;
    if (i == attention_work_.size()) {
      attention_work_.emplace_back();
      attention_work_[i].window = record.window;
      attention_work_[i].tiles.reserve(tiles);
      attention_work_[i].open.reset(new std::atomic<int32_t>[tiles * max_kv_heads_]);
    }
    work_of_.push_back(static_cast<int32_t>(i));
  }
  if (pool_.size() == 1) return;  // one thread has nothing to share
  const size_t longest = static_cast<size_t>(limits_.max_position / kSplit + 1);
  partial_floats_ = std::max(longest * partial_row_, kPartialFloats);
}

void Executor::list_tiles(AttentionWork& work) const {
  work.tiles.clear();
  for (int s = 0; s < counts_.seqs; ++s) {
    const int end = arrays_.query_start_loc[s + 1];
    for (int row = arrays_.query_start_loc[s]; row < end; row += kAttentionRows) {
      const int rows = std::min(kAttentionRows, end - row);
      const int first = arrays_.positions[row];
      const int start = work.window > 0 ? std::max(0, first + 1 - work.window) : 0;
      const int last_split = (first + rows - 1) / kSplit;
      work.tiles.push_back({s, row, rows, start / kSplit, last_split + 1, 1, 0});
    }
  }
}

// One item a tile, or several where that gives too few units to share evenly.
void Executor::cut_tiles(AttentionWork& work) const {
  auto cost_of = [&](const AttentionTile& tile, int begin, int end) {
    const int64_t context = arrays_.positions[tile.row] + tile.rows;
    const int64_t seen = work.window > 0 ? context - tile.rows + 1 - work.window : 0;
    const int64_t start = std::max(int64_t{begin} * kSplit, seen);
    return (std::min(int64_t{end} * kSplit, context) - start) * tile.rows;
  };
  int64_t total = 0;
  for (const AttentionTile& t : work.tiles) total += cost_of(t, t.begin_split, t.end_split);
  const int64_t share =
      std::max<int64_t>(1, total * max_kv_heads_ / (int64_t{pool_.size()} * kAttentionUnits));
  size_t used = 0;
  work.items.clear();
  for (size_t i = 0; i < work.tiles.size(); ++i) {
    AttentionTile& tile = work.tiles[i];
    const int splits = tile.end_split - tile.begin_split;
    const int64_t cost = cost_of(tile, tile.begin_split, tile.end_split);
    const int64_t wanted = std::min<int64_t>(splits, (cost + share - 1) / share);
    const size_t floats = static_cast<size_t>(splits) * tile.rows * partial_row_;
    const bool cut = wanted > 1 && used + floats <= partial_floats_;
    const int step = cut ? static_cast<int>((splits + wanted - 1) / wanted) : splits;
    tile.items = (splits + step - 1) / step;
    if (tile.items > 1) {
      tile.partials = used;
      used += floats;
    }
    for (int s = tile.begin_split; s < tile.end_split; s += step) {
      const int end = std::min(s + step, tile.end_split);
      work.items.push_back({static_cast<int32_t>(i), s, end, cost_of(tile, s, end)});
    }
    for (int h = 0; h < max_kv_heads_; ++h) work.open[i * max_kv_heads_ + h] = tile.items;
  }
}

// Longest first, so that the last items to finish are short ones.
void Executor::list_attention(AttentionWork& work) {
  list_tiles(work);
  cut_tiles(work);
  std::sort(work.items.begin(), work.items.end(),
            [](const AttentionItem& a, const AttentionItem& b) {
              if (a.cost != b.cost) return a.cost > b.cost;
              return a.tile != b.tile ? a.tile < b.tile : a.begin_split < b.begin_split;
            });
}

void Executor::attention(Spmd& spmd, const AttentionRecord& record) {
  const int kv_heads = plan_.stores[record.store].layout.num_kv_heads;
  float* scratch = threads_[spmd.thread()].scratch;
  AttentionWork& work = attention_work_[work_of_[&record - plan_.attention.data()]];
  const int units = static_cast<int>(work.items.size()) * kv_heads;
  spmd.for_ordered_units(units, [&](int u) {
    attention_unit(record, work, work.items[u / kv_heads], u % kv_heads, scratch);
  });
  const int columns = record.num_heads / kv_heads * plan_.stores[record.store].layout.head_dim;
  if (record.out_kind != ActKind::kI8 || columns % kQuantGroup == 0) return;
  // Groups of 32 columns span KV heads: quantize whole rows once all heads are there.
  const int width = record.num_heads * plan_.stores[record.store].layout.head_dim;
  ActRows out = attention_out_.narrowed(record.out_kind, width);
  spmd.for_units(counts_.tokens, [&](int t) {
    kernels_.norm_rows(attended_ + static_cast<size_t>(t) * width, width, 1, width, nullptr, 0.0f,
                       0.0f, &out, t);
  });
}

void Executor::attention_unit(const AttentionRecord& record, AttentionWork& work,
                              const AttentionItem& item, int kv_head, float* scratch) {
  const StoreSpec& store = plan_.stores[record.store];
  const AttentionTile& tile = work.tiles[item.tile];
  const int group = record.num_heads / store.layout.num_kv_heads;
  const int columns = group * store.layout.head_dim;
  const int width = record.num_heads * store.layout.head_dim;
  const size_t at = static_cast<size_t>(tile.row) * width + static_cast<size_t>(kv_head) * columns;
  AttentionArgs args = {};
  args.layout = &store.layout;
  args.kv = store.base;
  args.block_table =
      arrays_.block_tables +
      (static_cast<size_t>(store.group) * limits_.max_seqs + tile.seq) * limits_.max_blocks;
  args.kv_head = kv_head;
  args.group = group;
  args.rows = tile.rows;
  args.first_position = arrays_.positions[tile.row];
  args.window = record.window;
  args.scale = record.scale;
  args.softcap = record.softcap;
  args.q = queries_ + at;
  args.q_stride = width;
  args.out = attended_ + at;
  args.out_stride = width;
  args.scratch = scratch;
  if (tile.items > 1) {
    const size_t splits = static_cast<size_t>(tile.end_split - tile.begin_split);
    const size_t head_floats =
        splits * tile.rows * group * partial_row_floats(store.layout.head_dim);
    args.partials = partials_ + tile.partials + kv_head * head_floats;
    args.first_split = tile.begin_split;
    args.begin_split = item.begin_split;
    args.end_split = item.end_split;
  }
  kernels_.attention(&args);
  if (tile.items > 1) {
    // Whoever does a tile's last item sees the results of all of them, and merges.
    std::atomic<int32_t>& open = work.open[item.tile * max_kv_heads_ + kv_head];
    if (open.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    open.store(tile.items, std::memory_order_relaxed);  // for the next layer, a phase away
    kernels_.attention_merge(&args);
  }
  if (record.out_kind == ActKind::kI8 && columns % kQuantGroup) return;
  store_attended(record, tile.rows, columns, at);
}

// Makes one KV head's columns of `rows` rows input of the O projection while they are in cache: the
// whole rows, seen from these columns on.
void Executor::store_attended(const AttentionRecord& record, int rows, int columns, size_t at) {
  const int width = record.num_heads * plan_.stores[record.store].layout.head_dim;
  ActRows view = attention_out_.of(record.out_kind);
  view.k = width;
  if (view.f32) view.f32 += at;
  if (view.bf16) view.bf16 += at;
  if (view.q) {
    view.q += at;
    view.scale += at / kQuantGroup;
    view.isum += at / kQuantGroup;
    view.fsum += at / kQuantGroup;
    view.isum_low += at / kQuantGroup;
  }
  kernels_.norm_rows(attended_ + at, width, rows, columns, nullptr, 0.0f, 0.0f, &view, 0);
}

}  // namespace octavo
