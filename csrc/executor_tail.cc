// The tail: the rows that need logits, the head over the vocabulary, and sampling.
#include <algorithm>
#include <cstring>

#include "executor.h"
#include "executor_tuning.h"

namespace octavo {

constexpr int kHeadColumns = kHeadPanels * kLanes;
static_assert(kHeadColumns % kLogitBlock == 0, "a unit of the head has whole blocks");

// Which rows want no more of their logits than the first that is the largest.
void Executor::find_argmax_rows() {
  is_argmax_.resize(counts_.rows);
  for (int r = 0; r < counts_.rows; ++r) {
    is_argmax_[r] = !counts_.want_logits && draws_argmax(arrays_.sampling, r);
  }
}

// Columns column .. of logit row `row` to where the sampler reads them. It finds an argmax by the
// block maxima and then reads the first block that has the largest: no other of a unit can be it.
void Executor::keep_logits(const float* logits, int row, int column, int columns, bool argmax) {
  float* out = logits_ + static_cast<size_t>(row) * vocab_padded_ + column;
  if (!argmax) {
    std::memcpy(out, logits, columns * sizeof(float));
    return;
  }
  const int blocks = num_logit_blocks(columns);
  const float* maxima =
      maxima_ + static_cast<size_t>(row) * num_logit_blocks(plan_.vocab) + column / kLogitBlock;
  const int at = static_cast<int>(std::max_element(maxima, maxima + blocks) - maxima) * kLogitBlock;
  std::memcpy(out + at, logits + at, std::min(kLogitBlock, columns - at) * sizeof(float));
}

void Executor::tail(Spmd& spmd) {
  for (int row0 = 0; row0 < counts_.rows; row0 += logit_rows_) {
    tail_tile(spmd, row0, std::min(logit_rows_, counts_.rows - row0));
  }
}

void Executor::tail_tile(Spmd& spmd, int row0, int rows) {
  const TailRecord& record = plan_.tail;
  const PackedMatrix& w = record.head.weight;
  const ActSet& acts = normed(spmd, record.norm, rows, arrays_.logits_indices + row0);
  const int units = (w.panels + kHeadPanels - 1) / kHeadPanels;
  const int blocks = num_logit_blocks(plan_.vocab);
  float* tile = threads_[spmd.thread()].tile;
  spmd.for_units(units, [&](int u) {
    const int panel = u * kHeadPanels;
    const int panels = std::min(kHeadPanels, w.panels - panel);
    const int column = panel * kLanes;
    const int columns = std::min(panels * kLanes, w.rows - column);
    product(record.head, panel, panels, acts.of(record.head), 0, rows, tile, kHeadColumns, column,
            columns);
    for (int i = 0; i < rows && record.logit_scale != 1.0f; ++i) {
      float* row = tile + i * kHeadColumns;
      for (int c = 0; c < columns; ++c) row[c] *= record.logit_scale;
    }
    float* maxima = maxima_ + column / kLogitBlock;
    kernels_.block_maxima(tile, kHeadColumns, rows, columns, maxima, blocks);
    for (int i = 0; i < rows; ++i) {
      keep_logits(tile + i * kHeadColumns, i, column, columns, is_argmax_[row0 + i]);
    }
  });
  spmd.for_units(rows, [&](int r) {
    float* row = logits_ + static_cast<size_t>(r) * vocab_padded_;
    if (counts_.want_logits) {
      float* out = arrays_.logits + static_cast<size_t>(row0 + r) * plan_.vocab;
      std::memcpy(out, row, plan_.vocab * sizeof(float));
    }
    sample_row(row, maxima_ + static_cast<size_t>(r) * blocks, plan_.vocab, arrays_.sampling,
               row0 + r, arrays_.out, threads_[spmd.thread()].sampling);
  });
}

}  // namespace octavo
