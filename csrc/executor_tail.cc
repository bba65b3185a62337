// The tail: the rows that need logits, the head over the vocabulary, and sampling.
#include <algorithm>
#include <cstring>

#include "executor.h"
#include "executor_tuning.h"

namespace octavo {

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
  spmd.for_units(units, [&](int u) {
    const int panel = u * kHeadPanels;
    const int panels = std::min(kHeadPanels, w.panels - panel);
    const int column = panel * kLanes;
    const int columns = std::min(panels * kLanes, w.rows - column);
    float* out = logits_ + column;
    product(record.head, panel, panels, acts.of(record.head), 0, rows, out, vocab_padded_, column,
            columns);
    if (record.logit_scale == 1.0f) return;
    for (int i = 0; i < rows; ++i) {
      float* row = out + static_cast<size_t>(i) * vocab_padded_;
      for (int c = 0; c < columns; ++c) row[c] *= record.logit_scale;
    }
  });
  spmd.for_units(rows, [&](int r) {
    float* row = logits_ + static_cast<size_t>(r) * vocab_padded_;
    if (counts_.want_logits) {
      float* out = arrays_.logits + static_cast<size_t>(row0 + r) * plan_.vocab;
      std::memcpy(out, row, plan_.vocab * sizeof(float));
    }
    sample_row(row, plan_.vocab, arrays_.sampling, row0 + r, arrays_.out,
               threads_[spmd.thread()].sampling);
  });
}

}  // namespace octavo
