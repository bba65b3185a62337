// The arrays of one step as raw pointers (octavo/graph/step_arrays.py has their meaning), and the
// checks that keep native code inside its buffers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "octavo/kernels.h"
#include "plan.h"

namespace octavo {

struct StepLimits {
  int32_t max_tokens = 0;
  int32_t max_seqs = 0;
  int32_t max_rows = 0;
  int32_t max_blocks = 0;  // of one sequence
  int32_t num_groups = 1;
  int32_t max_mask_rows = 0;
  int32_t max_sparse = 0;
  int32_t max_report_ids = 0;  // of one row
  int32_t max_position = 0;  // positions the rope tables hold
  int32_t block_size = 16;
  int32_t num_blocks = 0;
  bool merge_shared_prefix = true;  // splits that sequences have in common are read once
};

struct StepArrays {
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* query_start_loc = nullptr;
  const int32_t* context_len = nullptr;
  const int32_t* block_tables = nullptr;  // [groups][max_seqs][max_blocks]
  const int32_t* slot_mapping = nullptr;  // [groups][max_tokens]
  const int32_t* logits_indices = nullptr;
  SamplingInputs sampling = {};
  SamplingOutputs out = {};
  int32_t top_rows = 0;     // rows that out.top_ids and out.top_logprobs hold
  float* logits = nullptr;  // [max_rows][vocab], where wanted
};

struct StepCounts {
  int32_t tokens = 0;
  int32_t seqs = 0;
  int32_t rows = 0;
  bool want_logits = false;
};

// Empty when every index of the step is in range, else what is wrong (field, place, value).
std::string check_step(const StepArrays& arrays, const StepCounts& counts, const StepLimits& limits,
                       const Plan& plan);

}  // namespace octavo
