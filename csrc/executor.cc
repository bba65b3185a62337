// Buffers, the walk and the parts every phase shares. The phases of a layer are in
// executor_layer.cc, the tail in executor_tail.cc.
#include "executor.h"

#include <algorithm>

#include "executor_tuning.h"

namespace octavo {

size_t ActSet::bytes(int m) const {
  const size_t values = static_cast<size_t>(m) * k;
  const size_t groups = values / kQuantGroup;
  size_t total = 0;
  if (wanted[static_cast<int>(ActKind::kF32)]) total += Arena::aligned(values * 4);
  if (wanted[static_cast<int>(ActKind::kBF16)]) total += Arena::aligned(values * 2);
  if (wanted[static_cast<int>(ActKind::kI8)]) {
    total += Arena::aligned(values) + 4 * Arena::aligned(groups * 4);
  }
  return total;
}

void ActSet::place(Arena& arena, int m) {
  const size_t values = static_cast<size_t>(m) * k;
  const size_t groups = values / kQuantGroup;
  for (int kind = 0; kind < 3; ++kind) {
    rows[kind] = {};
    rows[kind].kind = static_cast<ActKind>(kind);
    rows[kind].k = k;
  }
  if (wanted[static_cast<int>(ActKind::kF32)]) {
    of(ActKind::kF32).f32 = arena.allocate_array<float>(values);
  }
  if (wanted[static_cast<int>(ActKind::kBF16)]) {
    of(ActKind::kBF16).bf16 = arena.allocate_array<uint16_t>(values);
  }
  if (wanted[static_cast<int>(ActKind::kI8)]) {
    ActRows& i8 = of(ActKind::kI8);
    i8.q = arena.allocate_array<int8_t>(values);
    i8.scale = arena.allocate_array<float>(groups);
    i8.isum = arena.allocate_array<int32_t>(groups);
    i8.fsum = arena.allocate_array<float>(groups);
    i8.isum_low = arena.allocate_array<int32_t>(groups);
  }
}

Executor::Executor(const Plan& plan, const StepLimits& limits, const Kernels& kernels,
                   const LinearKernels& linear, ThreadPool& pool)
    : plan_(plan), limits_(limits), kernels_(kernels), linear_(linear), pool_(pool) {
  collect_kinds();
  allocate_attention();
  allocate();
}

void Executor::collect_kinds() {
  hidden_.k = plan_.hidden;
  tile_cols_ = kAddLinearPanels * kLanes;
  for (const QkvRecord& r : plan_.qkv) {
    for (const Projection* p : {&r.q, &r.k, &r.v}) hidden_.want(p->weight.act_kind());
    query_width_ = std::max(query_width_, r.q.weight.rows);
    tile_cols_ = std::max(tile_cols_, 2 * r.q.weight.group_panels * kLanes);
    tile_cols_ = std::max(tile_cols_, 2 * r.k.weight.group_panels * kLanes);
  }
  for (const GluRecord& r : plan_.glu) {
    hidden_.want(r.gate.weight.act_kind());
    hidden_.want(r.up.weight.act_kind());
    glu_out_.want(r.out_kind);
    glu_out_.k = std::max(glu_out_.k, r.gate.weight.rows);
    tile_cols_ = std::max(tile_cols_, 2 * kGluColumns);
  }
  for (const AttentionRecord& r : plan_.attention) attention_out_.want(r.out_kind);
  attention_out_.k = query_width_;
  hidden_.want(plan_.tail.head.weight.act_kind());
}

void Executor::allocate() {
  const int t = limits_.max_tokens;
  const int threads = pool_.size();
  const size_t stream = static_cast<size_t>(t) * plan_.hidden;
  const size_t query = static_cast<size_t>(t) * query_width_;
  const size_t tile = std::max(static_cast<size_t>(kRowBlock) * tile_cols_,
                               static_cast<size_t>(kLogitRows) * kHeadPanels * kLanes);
  vocab_padded_ = plan_.tail.head.weight.panels * kLanes;
  logit_rows_ = std::min(limits_.max_rows, kLogitRows);
  const size_t logits = static_cast<size_t>(logit_rows_) * vocab_padded_;
  const size_t maxima = static_cast<size_t>(logit_rows_) * num_logit_blocks(plan_.vocab);
  size_t scratch = 0;
  for (size_t i = 0; i < plan_.attention.size(); ++i) {
    const AttentionRecord& r = plan_.attention[i];
    const KVLayout& layout = plan_.stores[r.store].layout;
    scratch = std::max(scratch, attention_scratch_floats(kAttentionRows,
                                                         r.num_heads / layout.num_kv_heads,
                                                         layout.head_dim));
  }
  const size_t sampling = sample_scratch_bytes(plan_.vocab);
  const int shared_rows = std::max(t, limits_.max_rows);
  const size_t private_bytes = Arena::aligned(tile * 4) + Arena::aligned(scratch * 4) +
                               Arena::aligned(sampling) + hidden_.bytes(kRedundantRows);
  size_t total = Arena::aligned(stream * 4) + 2 * Arena::aligned(query * 4) +
                 Arena::aligned(logits * 4) + Arena::aligned(maxima * 4) +
                 Arena::aligned(partial_floats_ * 4) + hidden_.bytes(shared_rows) +
                 attention_out_.bytes(t) + glu_out_.bytes(t) + threads * private_bytes;
  arena_ = Arena(total);
  stream_ = arena_.allocate_array<float>(stream);
  queries_ = arena_.allocate_array<float>(query);
  attended_ = arena_.allocate_array<float>(query);
  logits_ = arena_.allocate_array<float>(logits);
  maxima_ = arena_.allocate_array<float>(maxima);
  partials_ = arena_.allocate_array<float>(partial_floats_);
  hidden_.place(arena_, shared_rows);
  attention_out_.place(arena_, t);
  glu_out_.place(arena_, t);
  for (int i = 0; i < threads; ++i) {
    ThreadBuffers own;
    own.tile = arena_.allocate_array<float>(tile);
    own.scratch = arena_.allocate_array<float>(scratch);
    own.sampling = arena_.allocate(sampling);
    own.hidden = hidden_;
    own.hidden.place(arena_, kRedundantRows);
    threads_.push_back(own);
  }
}

Executor::RowBlocks Executor::row_blocks(int rows) {
  const int count = (rows + kRowBlock - 1) / kRowBlock;
  return {count, (rows + count - 1) / count};
}

void Executor::run(const StepArrays& arrays, const StepCounts& counts) {
  arrays_ = arrays;
  counts_ = counts;
  merged_rows_ = 0;
  if (counts.tokens == 0) return;
  for (AttentionWork& work : attention_work_) list_attention(work);
  find_argmax_rows();
  auto body = [this](Spmd& spmd) { walk(spmd); };
  pool_.run(body);
}

void Executor::walk(Spmd& spmd) {
  embed(spmd);
  for (const RecordRef& ref : plan_.order) {
    switch (ref.kind) {
      case RecordKind::kQkv:
        qkv(spmd, plan_.qkv[ref.index]);
        break;
      case RecordKind::kAttention:
        attention(spmd, plan_.attention[ref.index]);
        break;
      case RecordKind::kAddLinear:
        add_linear(spmd, plan_.add_linear[ref.index]);
        break;
      case RecordKind::kGlu:
        glu(spmd, plan_.glu[ref.index]);
        break;
    }
  }
  tail(spmd);
}

void Executor::embed(Spmd& spmd) {
  const int hidden = plan_.hidden;
  const float scale = plan_.embed.scale;
  spmd.for_units(counts_.tokens, [&](int t) {
    float* out = stream_ + static_cast<size_t>(t) * hidden;
    unpack_row(plan_.embed.table, arrays_.token_ids[t], out);
    if (scale != 1.0f) {
      for (int i = 0; i < hidden; ++i) out[i] *= scale;
    }
  });
}

// The normed rows (index == nullptr: stream rows 0 .. rows - 1, else those it names). A few rows
// are cheaper to norm on every thread than to share and wait for.
const ActSet& Executor::normed(Spmd& spmd, const NormSpec& norm, int rows, const int32_t* index) {
  const bool redundant = rows <= kRedundantRows || spmd.threads() == 1;
  ActSet& target = rows <= kRedundantRows ? threads_[spmd.thread()].hidden : hidden_;
  const int hidden = plan_.hidden;
  auto some_rows = [&](int first, int count) {
    for (int kind = 0; kind < 3; ++kind) {
      if (!target.wanted[kind]) continue;
      if (!index) {
        kernels_.norm_rows(stream_ + static_cast<size_t>(first) * hidden, hidden, count, hidden,
                           norm.weight, norm.add_one, norm.eps, &target.rows[kind], first);
        continue;
      }
      for (int r = first; r < first + count; ++r) {
        kernels_.norm_rows(stream_ + static_cast<size_t>(index[r]) * hidden, hidden, 1, hidden,
                           norm.weight, norm.add_one, norm.eps, &target.rows[kind], r);
      }
    }
  };
  if (redundant) {
    if (!spmd.behind()) some_rows(0, rows);
    return target;
  }
  const int units = (rows + kNormRows - 1) / kNormRows;
  spmd.for_units(units, [&](int u) {
    some_rows(u * kNormRows, std::min(kNormRows, rows - u * kNormRows));
  });
  return target;
}

// out[i][c] = panels of p against rows row0 + i, plus bias. first_row is the bias index of column 0,
// `valid` how many columns are real rows (the rest is padding).
void Executor::product(const Projection& p, int panel, int panels, const ActRows& acts, int row0,
                       int rows, float* out, int64_t ld, int first_row, int valid) {
  linear_.tile(p.weight, panel, panels, acts, row0, rows, out, ld);
  if (!p.bias) return;
  const float* bias = p.bias + first_row;
  for (int i = 0; i < rows; ++i) {
    float* row = out + i * ld;
    for (int c = 0; c < valid; ++c) row[c] += bias[c];
  }
}

}  // namespace octavo
