// A model under construction and then running: owns weights, KV cache, plan, pool and executor.
// Python lowers the graph and calls the add_* functions in execution order; see
// octavo/backends/cpu/lowering.py.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "executor.h"
#include "plan.h"
#include "step_io.h"
#include "thread_pool.h"

namespace octavo {

struct ModelConfig {
  StepLimits limits;
  int32_t vocab = 0;
  int32_t hidden = 0;
  KVDtype kv_dtype = KVDtype::kBF16;
  int32_t num_threads = 1;
  int32_t usable_cpus = 1;
  size_t weight_bytes = 0;  // of the arena for everything added
};

struct NormArgs {
  int32_t weight = -1;  // a vector id, -1 = none
  float eps = 0.0f;
  float add_one = 0.0f;
};

struct ProjectionArgs {
  int32_t matrix = -1;
  int32_t bias = -1;  // a vector id, -1 = none
};

// Bytes `rows` x `k` of a type take in the weight arena.
size_t arena_bytes(QuantType type, int rows, int k, int group_rows);

class NativeModel {
 public:
  // isa: "" picks the best the CPU offers, else "generic", "avx2" or "avx512"; throws
  // std::invalid_argument where the CPU lacks it.
  NativeModel(const ModelConfig& config, const std::string& isa);

  // All add functions throw std::invalid_argument on shapes that do not fit each other.
  int add_matrix(QuantType type, int rows, int k, int group_rows, const uint8_t* source);
  int add_vector(const float* values, int n);
  int add_rope(const float* cos, const float* sin, int positions, int dim, bool interleaved);
  int add_store(int group, int kv_heads, int head_dim, int window);
  void set_embed(int matrix, float scale);
  void add_qkv(const NormArgs& norm, const ProjectionArgs& q, const ProjectionArgs& k,
               const ProjectionArgs& v, const NormArgs& q_norm, const NormArgs& k_norm, int q_rope,
               int k_rope, int store);
  void add_attention(int store, int num_heads, int window, float scale, float softcap);
  void add_linear(const ProjectionArgs& linear, bool from_glu, float scale);
  void add_glu(const NormArgs& norm, const ProjectionArgs& gate, const ProjectionArgs& up);
  void set_tail(const NormArgs& norm, const ProjectionArgs& head, float logit_scale);
  // Allocates the KV cache and the buffers; nothing can be added afterwards.
  void finish();

  StepArrays& arrays() { return arrays_; }
  const ModelConfig& config() const { return config_; }
  // Throws std::invalid_argument when an index of the step is out of range.
  void step(const StepCounts& counts);
  void copy_block(int source, int destination);

  const char* isa() const { return linear_->isa; }
  int num_threads() const { return pool_->size(); }
  int64_t num_calls() const { return num_calls_; }
  // Rows of the last step whose attention was merged with other sequences'.
  int merged_rows() const { return executor_ ? executor_->merged_rows() : 0; }
  size_t weight_bytes() const { return weights_.used(); }
  size_t kv_bytes() const { return kv_.capacity(); }
  size_t buffer_bytes() const { return executor_ ? executor_->buffer_bytes() : 0; }

 private:
  void choose_kernels(const std::string& isa);
  Projection projection(const ProjectionArgs& args, int k) const;
  NormSpec norm_spec(const NormArgs& args, int width) const;
  void push(RecordKind kind, size_t index);

  ModelConfig config_;
  const Kernels* kernels_ = nullptr;
  const LinearKernels* linear_ = nullptr;
  Arena weights_;
  Arena kv_;
  std::vector<PackedMatrix> matrices_;
  struct Vector {
    const float* values;
    int size;
  };
  std::vector<Vector> vectors_;
  Plan plan_;
  StepArrays arrays_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Executor> executor_;
  int64_t num_calls_ = 0;
};

}  // namespace octavo
