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
    const int group = plan_.stores[record.store].group;
    while (i < attention_work_.size() &&
           (attention_work_[i].window != record.window || attention_work_[i].group != group)) {
      ++i;
    }
    if (i == attention_work_.size()) {
      attention_work_.emplace_back();
      attention_work_[i].window = record.window;
      attention_work_[i].group = group;
      attention_work_[i].tiles.reserve(tiles);
      attention_work_[i].open.reset(new std::atomic<int32_t>[tiles * max_kv_heads_]);
    }
    work_of_.push_back(static_cast<int32_t>(i));
  }
  // One thread has nothing to share out.
  if (pool_.size() == 1 && !limits_.merge_shared_prefix) return;
  const size_t longest = static_cast<size_t>(limits_.max_position / kSplit + 1);
  partial_floats_ = std::max(longest * partial_row_, kPartialFloats);
}

void Executor::list_tiles(AttentionWork& work) const {
  work.tiles.clear();
  for (int s = 0; s < counts_.seqs; ++s) {
    const int end = arrays_.query_start_loc[s + 1];
    for (int row = arrays_.query_start_loc[s]; row < end; row += kAttentionRows) {
      AttentionTile tile = {};
      tile.seq = s;
      tile.row = row;
      tile.rows = std::min(kAttentionRows, end - row);
      tile.begin_split = first_seen(work, tile) / kSplit;
      tile.end_split = (arrays_.positions[row] + tile.rows - 1) / kSplit + 1;
      work.tiles.push_back(tile);
    }
  }
}

// The first position that the tile's first row attends to.
int Executor::first_seen(const AttentionWork& work, const AttentionTile& tile) const {
  return work.window > 0 ? std::max(0, arrays_.positions[tile.row] + 1 - work.window) : 0;
}

const int32_t* Executor::block_table(int group, int seq) const {
  return arrays_.block_tables +
         (static_cast<size_t>(group) * limits_.max_seqs + seq) * limits_.max_blocks;
}

// Makes items of the splits that rows of different sequences read from the same blocks: K and V are
// then read once for all of them. Returns how many floats of partial results these take.
size_t Executor::merge_tiles(AttentionWork& work) const {
  work.items.clear();
  work.members.clear();
  if (!limits_.merge_shared_prefix || counts_.seqs < 2) return 0;
  std::vector<SplitUser> users;
  std::vector<int32_t> tile_of, members;  // tile_of[user]; members: users
  for (size_t i = 0; i < work.tiles.size(); ++i) {
    const AttentionTile& tile = work.tiles[i];
    const int begin = (first_seen(work, tile) + kSplit - 1) / kSplit;
    const int end = (arrays_.positions[tile.row] + 1) / kSplit;
    if (tile.rows != 1 || begin >= end) continue;
    users.push_back({begin, end, block_table(work.group, tile.seq)});
    tile_of.push_back(static_cast<int32_t>(i));
  }
  std::vector<SharedSplit> groups;
  find_shared_splits(users, limits_.block_size, kMergedRows, members, groups);
  size_t used = 0;
  for (const SharedSplit& group : groups) merge_group(work, group, members, tile_of, used);
  return used;
}

// An item for the group's split, or a split more for the item of the same rows before it. Left out,
// to be done alone: tiles whose merged splits would not be one run (prefixes are shared from the
// beginning, so there are none in practice), and those for whose partial results there is no room.
void Executor::merge_group(AttentionWork& work, const SharedSplit& group,
                           const std::vector<int32_t>& members,
                           const std::vector<int32_t>& tile_of, size_t& used) const {
  const size_t first = work.members.size();
  size_t wanted = used;
  for (int m = 0; m < group.count; ++m) {
    const int32_t index = tile_of[members[group.first + m]];
    const AttentionTile& tile = work.tiles[index];
    if (tile.merged() && tile.merged_end != group.split) continue;
    const size_t floats = tile.merged() ? 0 : tile.splits() * partial_row_;
    if (wanted + floats > partial_floats_) continue;
    wanted += floats;
    work.members.push_back(index);
  }
  const int32_t count = static_cast<int32_t>(work.members.size() - first);
  if (count < 2) {
    work.members.resize(first);
    return;
  }
  for (size_t m = first; m < work.members.size(); ++m) {
    AttentionTile& tile = work.tiles[work.members[m]];
    if (!tile.merged()) {
      tile.merged_begin = group.split;
      tile.partials = used;
      used += tile.splits() * partial_row_;
    }
    tile.merged_end = group.split + 1;
    ++tile.items;
  }
  // Prepared queries serve the next split, too, if the same rows share it.
  const int32_t* tiles = work.members.data() + first;
  for (AttentionItem& item : work.items) {
    const bool follows = item.end_split == group.split && item.num_members == count &&
                         item.end_split - item.begin_split < kMergedSplits;
    if (!follows || !std::equal(tiles, tiles + count, work.members.data() + item.first_member)) {
      continue;
    }
    ++item.end_split;
    item.cost += int64_t{count} * kSplit;
    for (int m = 0; m < count; ++m) --work.tiles[tiles[m]].items;
    work.members.resize(first);
    return;
  }
  work.items.push_back({tiles[0], group.split, group.split + 1, int64_t{count} * kSplit,
                        static_cast<int32_t>(first), count});
}

// What is not merged: one item a tile (of each side of its merged splits), or several where that
// gives too few units to share evenly.
void Executor::cut_tiles(AttentionWork& work, size_t used) const {
  auto cost_of = [&](const AttentionTile& tile, int begin, int end) {
    const int64_t context = arrays_.positions[tile.row] + tile.rows;
    const int64_t seen = work.window > 0 ? context - tile.rows + 1 - work.window : 0;
    const int64_t start = std::max(int64_t{begin} * kSplit, seen);
    return begin < end ? (std::min(int64_t{end} * kSplit, context) - start) * tile.rows : 0;
  };
  int64_t total = 0;
  for (const AttentionTile& t : work.tiles) total += cost_of(t, t.begin_split, t.end_split);
  const int64_t share =
      std::max<int64_t>(1, total * max_kv_heads_ / (int64_t{pool_.size()} * kAttentionUnits));
  for (size_t i = 0; i < work.tiles.size(); ++i) {
    AttentionTile& tile = work.tiles[i];
    const int splits = tile.splits() - (tile.merged_end - tile.merged_begin);
    const int64_t cost = cost_of(tile, tile.begin_split, tile.end_split) -
                         cost_of(tile, tile.merged_begin, tile.merged_end);
    const int64_t wanted =
        pool_.size() == 1 ? 1 : std::min<int64_t>(splits, (cost + share - 1) / share);
    const size_t floats = static_cast<size_t>(tile.splits()) * tile.rows * partial_row_;
    const bool cut = wanted > 1 && (tile.merged() || used + floats <= partial_floats_);
    const int step = std::max(1, cut ? static_cast<int>((splits + wanted - 1) / wanted) : splits);
    auto add_items = [&](int begin, int end) {
      for (int s = begin; s < end; s += step, ++tile.items) {
        const int stop = std::min(s + step, end);
        work.items.push_back({static_cast<int32_t>(i), s, stop, cost_of(tile, s, stop), 0, 0});
      }
    };
    if (tile.merged()) {
      add_items(tile.begin_split, tile.merged_begin);
      add_items(tile.merged_end, tile.end_split);
    } else {
      add_items(tile.begin_split, tile.end_split);
      tile.partials = used;
      if (tile.items > 1) used += floats;
    }
    for (int h = 0; h < max_kv_heads_; ++h) work.open[i * max_kv_heads_ + h] = tile.items;
  }
}

// Longest first, so that the last items to finish are short ones. Of equal ones, those of a split
// together: the groups that share it find it in L2.
void Executor::list_attention(AttentionWork& work) {
  list_tiles(work);
  cut_tiles(work, merge_tiles(work));
  int merged = 0;
  for (const AttentionTile& tile : work.tiles) merged += tile.merged();
  merged_rows_ = std::max(merged_rows_, merged);
  std::sort(work.items.begin(), work.items.end(),
            [](const AttentionItem& a, const AttentionItem& b) {
              if (a.cost != b.cost) return a.cost > b.cost;
              if (a.begin_split != b.begin_split) return a.begin_split < b.begin_split;
              return a.tile < b.tile;
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

// All that does not depend on the rows.
AttentionArgs Executor::attention_args(const AttentionRecord& record, int kv_head,
                                       float* scratch) const {
  const StoreSpec& store = plan_.stores[record.store];
  AttentionArgs args = {};
  args.layout = &store.layout;
  args.kv = store.base;
  args.kv_head = kv_head;
  args.group = record.num_heads / store.layout.num_kv_heads;
  args.window = record.window;
  args.scale = record.scale;
  args.softcap = record.softcap;
  args.q_stride = args.out_stride = int64_t{record.num_heads} * store.layout.head_dim;
  args.scratch = scratch;
  return args;
}

void Executor::aim_at_tile(const AttentionRecord& record, const AttentionTile& tile,
                           AttentionArgs& args) const {
  const StoreSpec& store = plan_.stores[record.store];
  const size_t at = static_cast<size_t>(tile.row * args.q_stride) +
                    static_cast<size_t>(args.kv_head) * args.group * store.layout.head_dim;
  args.block_table = block_table(store.group, tile.seq);
  args.rows = tile.rows;
  args.first_position = arrays_.positions[tile.row];
  args.q = queries_ + at;
  args.out = attended_ + at;
  if (!tile.in_parts()) return;
  const size_t head_floats = static_cast<size_t>(tile.splits()) * tile.rows * args.group *
                             partial_row_floats(store.layout.head_dim);
  args.partials = partials_ + tile.partials + args.kv_head * head_floats;
  args.first_split = tile.begin_split;
}

void Executor::attention_unit(const AttentionRecord& record, AttentionWork& work,
                              const AttentionItem& item, int kv_head, float* scratch) {
  AttentionArgs args = attention_args(record, kv_head, scratch);
  args.begin_split = item.begin_split;
  args.end_split = item.end_split;
  if (item.num_members > 0) {
    merged_unit(record, work, item, args);
    return;
  }
  aim_at_tile(record, work.tiles[item.tile], args);
  kernels_.attention(&args);
  finish_item(record, work, item.tile, args);
}

void Executor::merged_unit(const AttentionRecord& record, AttentionWork& work,
                           const AttentionItem& item, AttentionArgs args) {
  AttentionMember members[kMergedRows];
  AttentionArgs own[kMergedRows];
  const int32_t* tiles = work.members.data() + item.first_member;
  const size_t split_floats =
      static_cast<size_t>(args.group) * partial_row_floats(args.layout->head_dim);
  for (int m = 0; m < item.num_members; ++m) {
    own[m] = args;
    aim_at_tile(record, work.tiles[tiles[m]], own[m]);
    const size_t before = static_cast<size_t>(item.begin_split - own[m].first_split);
    members[m] = {own[m].q, own[m].partials + before * split_floats, own[m].first_position};
  }
  args.block_table = own[0].block_table;
  args.members = members;
  args.rows = item.num_members;
  args.first_split = item.begin_split;
  kernels_.attention(&args);
  for (int m = 0; m < item.num_members; ++m) finish_item(record, work, tiles[m], own[m]);
}

// One of the tile's items is done for this KV head. Whoever does the last one sees the results of
// all of them, and merges.
void Executor::finish_item(const AttentionRecord& record, AttentionWork& work, int tile_index,
                           const AttentionArgs& args) {
  const AttentionTile& tile = work.tiles[tile_index];
  if (tile.in_parts()) {
    std::atomic<int32_t>& open = work.open[tile_index * max_kv_heads_ + args.kv_head];
    if (open.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    open.store(tile.items, std::memory_order_relaxed);  // for the next layer, a phase away
    kernels_.attention_merge(&args);
  }
  const int columns = args.group * args.layout->head_dim;
  if (record.out_kind == ActKind::kI8 && columns % kQuantGroup) return;
  store_attended(record, tile.rows, columns, static_cast<size_t>(args.out - attended_));
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
