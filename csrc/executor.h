// Walks the plan: every thread goes through the same records, phase by phase (thread_pool.h).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "plan.h"
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

 private:
  struct ThreadBuffers {
    float* tile = nullptr;     // [kRowBlock][tile_cols_]
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
    size_t partials;  // where its partial results start, if there are several items
  };
  // Some splits of a tile. A unit of work is an item for one KV head.
  struct AttentionItem {
    int32_t tile;
    int32_t begin_split;
    int32_t end_split;
    int64_t cost;  // query rows times positions
  };
  // The attention of a step, for the layers with this window.
  struct AttentionWork {
    int32_t window = 0;
    std::vector<AttentionTile> tiles;
    std::vector<AttentionItem> items;
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
  void cut_tiles(AttentionWork& work) const;
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
  void store_attended(const AttentionRecord& record, int rows, int columns, size_t at);
  void add_linear(Spmd& spmd, const AddLinearRecord& record);
  void glu(Spmd& spmd, const GluRecord& record);
  void tail(Spmd& spmd);
  void tail_tile(Spmd& spmd, int row0, int rows);

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
  int query_width_ = 0;
  ActSet hidden_, attention_out_, glu_out_;
  std::vector<ThreadBuffers> threads_;
  std::vector<AttentionWork> attention_work_;  // one a window
  std::vector<int32_t> work_of_;               // by attention record
  int max_kv_heads_ = 0;
  size_t partial_row_ = 0;  // floats of one row and split, all heads
  size_t partial_floats_ = 0;
  float* partials_ = nullptr;
  StepArrays arrays_;
  StepCounts counts_;
};

}  // namespace octavo
