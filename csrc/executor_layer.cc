// The phases of a layer. A phase starts when the one before is complete, so it may read all of it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "executor.h"
#include "executor_tuning.h"

namespace octavo {

void Executor::qkv(Spmd& spmd, const QkvRecord& record) {
  const ActSet& acts = normed(spmd, record.norm, counts_.tokens, nullptr);
  const RowBlocks blocks = row_blocks(counts_.tokens);
  const int kv_heads = record.k.weight.groups();
  const int heads = kv_heads + record.q.weight.groups();
  float* tile = threads_[spmd.thread()].tile;
  spmd.for_units(heads * blocks.count, [&](int u) {
    const int head = u % heads;
    const int row0 = u / heads * blocks.size;
    const int rows = std::min(blocks.size, counts_.tokens - row0);
    // KV heads come first: they cost twice a query head.
    if (head < kv_heads) {
      kv_unit(acts, record, head, row0, rows, tile);
    } else {
      query_unit(acts, record, head - kv_heads, row0, rows, tile);
    }
  });
}

// QK-norm and rope of one head's rows, in place.
void Executor::rotate_rows(float* tile, int64_t ld, int dim, const NormSpec& norm, int rope,
                           int row0, int rows) {
  const RopeTable* table = rope >= 0 ? &plan_.ropes[rope] : nullptr;
  for (int i = 0; i < rows; ++i) {
    float* head = tile + i * ld;
    if (norm.weight) kernels_.head_norm(head, dim, norm.weight, norm.add_one, norm.eps);
    if (table) kernels_.rope(head, table, arrays_.positions[row0 + i]);
  }
}

void Executor::query_unit(const ActSet& acts, const QkvRecord& record, int head, int row0, int rows,
                          float* tile) {
  const PackedMatrix& w = record.q.weight;
  const int dim = w.group_rows;
  float* queries = queries_ + static_cast<size_t>(row0) * w.rows + head * dim;
  // Panels without padding: the product writes the queries where they belong.
  const bool direct = dim == w.group_panels * kLanes;
  float* out = direct ? queries : tile;
  const int64_t ld = direct ? w.rows : w.group_panels * kLanes;
  product(record.q, head * w.group_panels, w.group_panels, acts.of(record.q), row0, rows, out, ld,
          head * dim, dim);
  rotate_rows(out, ld, dim, record.q_norm, record.q_rope, row0, rows);
  for (int i = 0; i < rows && !direct; ++i) {
    std::memcpy(queries + static_cast<size_t>(i) * w.rows, tile + i * ld, dim * sizeof(float));
  }
}

void Executor::kv_unit(const ActSet& acts, const QkvRecord& record, int head, int row0, int rows,
                       float* tile) {
  const PackedMatrix& w = record.k.weight;
  const StoreSpec& store = plan_.stores[record.store];
  const int dim = w.group_rows;
  const int panels = w.group_panels;
  const int64_t ld = 2 * panels * kLanes;
  float* values = tile + panels * kLanes;
  product(record.k, head * panels, panels, acts.of(record.k), row0, rows, tile, ld, head * dim, dim);
  product(record.v, head * panels, panels, acts.of(record.v), row0, rows, values, ld, head * dim, dim);
  rotate_rows(tile, ld, dim, record.k_norm, record.k_rope, row0, rows);
  const int32_t* slots =
      arrays_.slot_mapping + static_cast<size_t>(store.group) * limits_.max_tokens;
  for (int i = 0; i < rows; ++i) {
    kernels_.kv_write(&store.layout, store.base, slots[row0 + i], head, tile + i * ld,
                      values + i * ld);
  }
}

// x += y * scale. The scale is a copy: a reference might alias x, which would forbid vectors.
static void add_scaled(float* __restrict x, const float* __restrict y, int n, float scale) {
  for (int i = 0; i < n; ++i) x[i] = std::fma(y[i], scale, x[i]);
}

void Executor::add_linear(Spmd& spmd, const AddLinearRecord& record) {
  const PackedMatrix& w = record.linear.weight;
  const ActSet& source = record.source == LinearSource::kAttention ? attention_out_ : glu_out_;
  const ActRows acts = source.narrowed(w.act_kind(), w.k);
  const RowBlocks blocks = row_blocks(counts_.tokens);
  const int units = (w.panels + kAddLinearPanels - 1) / kAddLinearPanels;
  const int64_t ld = kAddLinearPanels * kLanes;
  float* tile = threads_[spmd.thread()].tile;
  spmd.for_units(units * blocks.count, [&](int u) {
    const int panel = u % units * kAddLinearPanels;
    const int row0 = u / units * blocks.size;
    const int rows = std::min(blocks.size, counts_.tokens - row0);
    const int column = panel * kLanes;
    const int panels = std::min(kAddLinearPanels, w.panels - panel);
    const int columns = std::min(panels * kLanes, w.rows - column);
    product(record.linear, panel, panels, acts, row0, rows, tile, ld, column, columns);
    for (int i = 0; i < rows; ++i) {
      float* x = stream_ + static_cast<size_t>(row0 + i) * plan_.hidden + column;
      add_scaled(x, tile + i * ld, columns, record.scale);
    }
  });
}

void Executor::glu(Spmd& spmd, const GluRecord& record) {
  const ActSet& acts = normed(spmd, record.norm, counts_.tokens, nullptr);
  const RowBlocks blocks = row_blocks(counts_.tokens);
  const int width = record.gate.weight.rows;
  const int units = (width + kGluColumns - 1) / kGluColumns;
  const int64_t ld = 2 * kGluColumns;
  float* tile = threads_[spmd.thread()].tile;
  ActRows out = glu_out_.narrowed(record.out_kind, width);
  spmd.for_units(units * blocks.count, [&](int u) {
    const int column = u % units * kGluColumns;
    const int row0 = u / units * blocks.size;
    const int rows = std::min(blocks.size, counts_.tokens - row0);
    const int columns = std::min(kGluColumns, width - column);
    const int panel = column / kLanes;
    const int panels = (columns + kLanes - 1) / kLanes;
    product(record.gate, panel, panels, acts.of(record.gate), row0, rows, tile, ld, column,
            columns);
    product(record.up, panel, panels, acts.of(record.up), row0, rows, tile + kGluColumns, ld,
            column, columns);
    kernels_.silu_mul(tile, tile + kGluColumns, ld, rows, columns, &out, row0, column);
  });
}

}  // namespace octavo
