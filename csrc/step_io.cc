#include "step_io.h"

#include <algorithm>

namespace octavo {
namespace {

std::string bad(const char* field, int index, long long value, const char* why) {
  return std::string(field) + "[" + std::to_string(index) + "] = " + std::to_string(value) + ": " +
         why;
}

std::string check_counts(const StepCounts& c, const StepLimits& l) {
  if (c.tokens < 0 || c.tokens > l.max_tokens) return "num_tokens exceeds max_tokens";
  if (c.seqs < 0 || c.seqs > l.max_seqs) return "num_seqs exceeds max_seqs";
  if (c.rows < 0 || c.rows > l.max_rows) return "num_rows exceeds max_rows";
  return "";
}

std::string check_tokens(const StepArrays& a, const StepCounts& c, const StepLimits& l, int vocab) {
  const long long slots = static_cast<long long>(l.num_blocks) * l.block_size;
  for (int t = 0; t < c.tokens; ++t) {
    if (a.token_ids[t] < 0 || a.token_ids[t] >= vocab) {
      return bad("token_ids", t, a.token_ids[t], "outside the vocabulary");
    }
    if (a.positions[t] < 0 || a.positions[t] >= l.max_position) {
      return bad("positions", t, a.positions[t], "outside the position table");
    }
    for (int g = 0; g < l.num_groups; ++g) {
      const int32_t slot = a.slot_mapping[static_cast<size_t>(g) * l.max_tokens + t];
      if (slot < 0 || slot >= slots) return bad("slot_mapping", t, slot, "outside the KV cache");
    }
  }
  for (int r = 0; r < c.rows; ++r) {
    if (a.logits_indices[r] < 0 || a.logits_indices[r] >= c.tokens) {
      return bad("logits_indices", r, a.logits_indices[r], "not a token row of this step");
    }
  }
  return "";
}

// Positions a group's attention may reach back: 0 = all of them.
int group_window(const Plan& plan, int group) {
  int window = -1;
  for (const AttentionRecord& record : plan.attention) {
    if (plan.stores[record.store].group != group) continue;
    if (record.window == 0) return 0;
    window = std::max(window, record.window);
  }
  return std::max(window, 0);
}

std::string check_sequence(const StepArrays& a, const StepLimits& l, const Plan& plan, int s) {
  const int first_row = a.query_start_loc[s];
  const int last_row = a.query_start_loc[s + 1];
  if (first_row == last_row) return "";
  const int first = a.positions[first_row];
  for (int t = first_row; t < last_row; ++t) {
    if (a.positions[t] != first + (t - first_row)) {
      return bad("positions", t, a.positions[t], "rows of a sequence must be consecutive");
    }
  }
  const int context = first + (last_row - first_row);
  if (a.context_len[s] != context) {
    return bad("context_len", s, a.context_len[s], "is not the last position + 1");
  }
  const int blocks = (context + l.block_size - 1) / l.block_size;
  if (blocks > l.max_blocks) return bad("context_len", s, context, "exceeds the block table");
  for (int g = 0; g < l.num_groups; ++g) {
    const int32_t* table =
        a.block_tables + (static_cast<size_t>(g) * l.max_seqs + s) * l.max_blocks;
    const int window = group_window(plan, g);
    const int from = window ? std::max(0, first - window + 1) / l.block_size : 0;
    for (int b = from; b < blocks; ++b) {
      if (table[b] < 0 || table[b] >= l.num_blocks) {
        return bad("block_tables", b, table[b], "not a block of the KV cache");
      }
    }
  }
  return "";
}

std::string check_sparse(const char* name, const int32_t* start, const int32_t* ids, int rows,
                         int limit, int vocab) {
  if (rows == 0) return "";
  if (start[0] < 0) return bad(name, 0, start[0], "negative start");
  for (int r = 0; r < rows; ++r) {
    if (start[r + 1] < start[r] || start[r + 1] > limit) {
      return bad(name, r + 1, start[r + 1], "starts must ascend within the array");
    }
  }
  for (int i = start[0]; i < start[rows]; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) return bad(name, i, ids[i], "id outside the vocabulary");
  }
  return "";
}

std::string check_sampling(const StepArrays& a, int rows, const StepLimits& l, int vocab) {
  const SamplingInputs& s = a.sampling;
  if (a.out.top_stride > 0 && rows > a.top_rows) return "the table of alternatives has too few rows";
  for (int r = 0; r < rows; ++r) {
    if (s.mask_index[r] >= l.max_mask_rows) {
      return bad("mask_index", r, s.mask_index[r], "not a mask row");
    }
    if (s.num_logprobs[r] > a.out.top_stride || s.num_logprobs[r] > vocab) {
      return bad("num_logprobs", r, s.num_logprobs[r], "exceeds the table of alternatives");
    }
    if (s.target_ids[r] >= vocab) {
      return bad("target_ids", r, s.target_ids[r], "outside the vocabulary");
    }
  }
  std::string error = check_sparse("penalty_start/penalty_ids", s.penalty_start, s.penalty_ids,
                                   rows, l.max_sparse, vocab);
  if (!error.empty()) return error;
  error = check_sparse("bias_start/bias_ids", s.bias_start, s.bias_ids, rows, l.max_sparse, vocab);
  if (!error.empty()) return error;
  return check_sparse("report_start/report_ids", s.report_start, s.report_ids, rows,
                      l.max_rows * l.max_report_ids, vocab);
}

}  // namespace

std::string check_step(const StepArrays& a, const StepCounts& c, const StepLimits& l,
                       const Plan& plan) {
  std::string error = check_counts(c, l);
  if (error.empty()) error = check_tokens(a, c, l, plan.vocab);
  if (!error.empty()) return error;
  if (a.query_start_loc[0] != 0) return "query_start_loc[0] must be 0";
  for (int s = 0; s < c.seqs; ++s) {
    if (a.query_start_loc[s + 1] < a.query_start_loc[s] || a.query_start_loc[s + 1] > c.tokens) {
      return bad("query_start_loc", s + 1, a.query_start_loc[s + 1], "must ascend to num_tokens");
    }
    error = check_sequence(a, l, plan, s);
    if (!error.empty()) return error;
  }
  if (a.query_start_loc[c.seqs] != c.tokens) return "query_start_loc must end at num_tokens";
  return check_sampling(a, c.rows, l, plan.vocab);
}

}  // namespace octavo
