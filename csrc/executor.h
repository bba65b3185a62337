// Walks the plan: every thread goes through the same records, phase by phase (thread_pool.h).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "plan.h"
#include "shared_splits.h"
#include "step_io.h"
#include "thread_pool.h"

namespace octavo {

// Activation rows in each storage some projection reads.
struct ActSet {
  ActRows rows[3];            // indexed by ActKind
  bool wanted[3] = {};
  int32_t k = 0;

  ActRows& of(ActKind kind) { return rows[static_cast<int>(kind)]; }
  const ActRows& of(ActKind kind) const { return rows[static_cast<int>(kind)]; }
  // What the projection reads.
  const ActRows& of(const Projection& p) const { return of(p.weight.act_kind()); }
  // The same memory as rows of `width` <= k columns.
  ActRows narrowed(ActKind kind, int width) const {
    ActRows out = of(kind);
    out.k = width;
    return out;
  }
  void want(ActKind kind) { wanted[static_cast<int>(kind)] = true; }
  size_t bytes(int m) const;
  void place(Arena& arena, int m);
};

class Executor {
 public:
  Executor(const Plan& plan, const StepLimits& limits, const Kernels& kernels,
           const LinearKernels& linear, ThreadPool& pool);

  // The step must have passed check_step.
  void run(const StepArrays& arrays, const StepCounts& counts);
  size_t buffer_bytes() const { return arena_.used(); }
  // Rows of the last step whose attention read some splits together with other sequences.
  int merged_rows() const { return merged_rows_; }

 private:
  struct ThreadBuffers {
    float* tile = nullptr;     // [kRowBlock][tile_cols_], or the logits of a unit of the head
    float* scratch = nullptr;  // attention
    uint8_t* sampling = nullptr;
    ActSet hidden;  // normed rows of steps too small to share the work
  };
  // Query rows row .. row + rows - 1 of the step, all of one sequence.
  struct AttentionTile {
    int32_t seq;
    int32_t row;
    int32_t rows;
    int32_t begin_split;
    int32_t end_split;
    int32_t items;
    size_t partials;  // where its partial results start, unless it is one item of its own
    int32_t merged_begin;  // splits merged_begin .. merged_end - 1 are done together with other
    int32_t merged_end;    // tiles, whose sequences have the same blocks there

    bool merged() const { return merged_end > merged_begin; }
    bool in_parts() const { return merged() || items > 1; }
    int splits() const { return end_split - begin_split; }
  };
  // Some splits of a tile, or of several tiles of one row each. A unit of work is an item for one KV
  // head.
  struct AttentionItem {
    int32_t tile;
    int32_t begin_split;
    int32_t end_split;
    int64_t cost;          // query rows times positions
    int32_t first_member;  // in the work's list
    int32_t num_members;   // tiles; 0: the one above, alone
  };
  // The attention of a step, for the layers with this window and group of block tables.
  struct AttentionWork {
    int32_t window = 0;
    int32_t group = 0;
    std::vector<AttentionTile> tiles;
    std::vector<AttentionItem> items;
    std::vector<int32_t> members;  // tiles of items that have several
    std::unique_ptr<std::atomic<int32_t>[]> open;  // [tile][KV head]: items not done yet
  };
  // Rows cut into even blocks: block b is rows b * size .. of [0, rows).
  struct RowBlocks {
    int count;
    int size;
  };

  void collect_kinds();
  void allocate();
  void allocate_attention();
  void list_attention(AttentionWork& work);
  void list_tiles(AttentionWork& work) const;
  size_t merge_tiles(AttentionWork& work) const;
  void merge_group(AttentionWork& work, const SharedSplit& group,
                   const std::vector<int32_t>& members, const std::vector<int32_t>& tile_of,
                   size_t& used) const;
  void cut_tiles(AttentionWork& work, size_t used) const;
  int first_seen(const AttentionWork& work, const AttentionTile& tile) const;
  const int32_t* block_table(int group, int seq) const;
  static RowBlocks row_blocks(int rows);

  void walk(Spmd& spmd);
  void embed(Spmd& spmd);
  void qkv(Spmd& spmd, const QkvRecord& record);
  void query_unit(const ActSet& acts, const QkvRecord& record, int head, int row0, int rows,
                  float* tile);
  void kv_unit(const ActSet& acts, const QkvRecord& record, int head, int row0, int rows,
               float* tile);
  void rotate_rows(float* tile, int64_t ld, int dim, const NormSpec& norm, int rope, int row0,
                   int rows);
  void attention(Spmd& spmd, const AttentionRecord& record);
  void attention_unit(const AttentionRecord& record, AttentionWork& work, const AttentionItem& item,
                      int kv_head, float* scratch);
  AttentionArgs attention_args(const AttentionRecord& record, int kv_head, float* scratch) const;
  void aim_at_tile(const AttentionRecord& record, const AttentionTile& tile,
                   AttentionArgs& args) const;
  void merged_unit(const AttentionRecord& record, AttentionWork& work, const AttentionItem& item,
                   AttentionArgs args);
  void finish_item(const AttentionRecord& record, AttentionWork& work, int tile_index,
                   const AttentionArgs& args);
  void store_attended(const AttentionRecord& record, int rows, int columns, size_t at);
  void add_linear(Spmd& spmd, const AddLinearRecord& record);
  void glu(Spmd& spmd, const GluRecord& record);
  void find_argmax_rows();
  void tail(Spmd& spmd);
  void tail_tile(Spmd& spmd, int row0, int rows);
  void keep_logits(const float* logits, int row, int column, int columns, bool argmax);

  const ActSet& normed(Spmd& spmd, const NormSpec& norm, int rows, const int32_t* index);
  void product(const Projection& p, int panel, int panels, const ActRows& acts, int row0, int rows,
               float* out, int64_t ld, int first_row, int valid);

  const Plan& plan_;
  const StepLimits limits_;
  const Kernels& kernels_;
  const LinearKernels& linear_;
  ThreadPool& pool_;
  Arena arena_;
  int tile_cols_ = 0;
  int vocab_padded_ = 0;
  int logit_rows_ = 0;
  float* stream_ = nullptr;     // [T][hidden], the residual stream
  float* queries_ = nullptr;    // [T][query width]
  float* attended_ = nullptr;   // [T][query width]
  float* logits_ = nullptr;     // [logit_rows_][vocab_padded_]
  float* maxima_ = nullptr;     // [logit_rows_][num_logit_blocks(vocab)]
  std::vector<uint8_t> is_argmax_;  // [rows of the step]
  int query_width_ = 0;
  ActSet hidden_, attention_out_, glu_out_;
  std::vector<ThreadBuffers> threads_;
  std::vector<AttentionWork> attention_work_;  // one a window
  std::vector<int32_t> work_of_;               // by attention record
  int max_kv_heads_ = 0;
  size_t partial_row_ = 0;  // floats of one row and split, all heads
  size_t partial_floats_ = 0;
  float* partials_ = nullptr;
  int merged_rows_ = 0;
  StepArrays arrays_;
  StepCounts counts_;
};

}  // namespace octavo
