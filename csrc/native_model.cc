#include "native_model.h"

#include <cstring>
#include <stdexcept>

#include "executor_tuning.h"

namespace octavo {
namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

size_t arena_bytes(QuantType type, int rows, int k, int group_rows) {
  require(rows > 0 && k > 0 && group_rows > 0 && rows % group_rows == 0 &&
              source_row_bytes(type, k) > 0,
          "matrix shape does not fit its type");
  return Arena::aligned(packed_shape(type, rows, k, group_rows).bytes());
}

NativeModel::NativeModel(const ModelConfig& config, const std::string& isa) : config_(config) {
  const StepLimits& l = config.limits;
  require(l.max_tokens > 0 && l.max_seqs > 0 && l.max_rows > 0 && l.max_blocks > 0 &&
              l.num_groups > 0 && l.num_blocks > 0 && config.vocab > 0 && config.hidden > 0,
          "limits must be positive");
  require(l.block_size > 0 && l.block_size % 16 == 0, "block_size must be a multiple of 16");
  require(static_cast<int64_t>(l.num_blocks) * l.block_size < INT32_MAX,
          "the KV cache has more slots than an int32 can count");
  choose_kernels(isa);
  weights_ = Arena(config.weight_bytes);
  pool_ = std::make_unique<ThreadPool>(config.num_threads, config.usable_cpus);
  plan_.vocab = config.vocab;
  plan_.hidden = config.hidden;
}

// The best that CPU and build have; a forced ISA must be there.
void NativeModel::choose_kernels(const std::string& isa) {
  struct Choice {
    const char* isa;
    const Kernels* kernels;
    const LinearKernels* linear;
  };
  const Choice choices[] = {{"avx512", kernels_avx512(), linear_avx512bf16()},
                            {"avx512", kernels_avx512(), linear_avx512()},
                            {"avx2", kernels_avx2(), linear_avx2()},
                            {"neon", kernels_neon(), linear_neondot()},
                            {"neon", kernels_neon(), linear_neon()},
                            {"generic", kernels_generic(), linear_generic()}};
  bool known = isa.empty();
  for (const Choice& choice : choices) {
    if (!isa.empty() && isa != choice.isa) continue;
    known = true;
    if (!choice.kernels || !choice.linear) continue;
    kernels_ = choice.kernels;
    linear_ = choice.linear;
    return;
  }
  require(known, "isa is \"generic\", \"avx2\", \"avx512\" or \"neon\"");
  throw std::invalid_argument("this CPU or build has no " + isa);
}

int NativeModel::add_matrix(QuantType type, int rows, int k, int group_rows,
                            const uint8_t* source) {
  const size_t bytes = arena_bytes(type, rows, k, group_rows);
  PackedMatrix matrix = packed_shape(type, rows, k, group_rows);
  uint8_t* data = weights_.allocate(bytes);
  pack_matrix(matrix, type, source, data);
  matrix.data = data;
  matrices_.push_back(matrix);
  return static_cast<int>(matrices_.size()) - 1;
}

int NativeModel::add_vector(const float* values, int n) {
  float* copy = weights_.allocate_array<float>(static_cast<size_t>(n));
  std::memcpy(copy, values, static_cast<size_t>(n) * sizeof(float));
  vectors_.push_back({copy, n});
  return static_cast<int>(vectors_.size()) - 1;
}

int NativeModel::add_rope(const float* cos, const float* sin, int positions, int dim,
                          bool interleaved) {
  require(dim > 0 && dim % 2 == 0, "rope dim must be even");
  require(positions >= config_.limits.max_position, "rope table is shorter than max_position");
  const size_t n = static_cast<size_t>(positions) * (dim / 2);
  float* c = weights_.allocate_array<float>(n);
  float* s = weights_.allocate_array<float>(n);
  std::memcpy(c, cos, n * sizeof(float));
  std::memcpy(s, sin, n * sizeof(float));
  plan_.ropes.push_back({c, s, dim, interleaved});
  return static_cast<int>(plan_.ropes.size()) - 1;
}

int NativeModel::add_store(int group, int kv_heads, int head_dim, int window) {
  require(group >= 0 && group < config_.limits.num_groups, "no such KV group");
  require(kv_heads > 0 && head_dim > 0 && head_dim % 4 == 0, "head_dim must be a multiple of 4");
  StoreSpec store;
  store.group = group;
  store.window = window;
  store.layout =
      make_kv_layout(config_.kv_dtype, kv_heads, head_dim, config_.limits.block_size);
  plan_.stores.push_back(store);
  return static_cast<int>(plan_.stores.size()) - 1;
}

Projection NativeModel::projection(const ProjectionArgs& args, int k) const {
  require(args.matrix >= 0 && args.matrix < static_cast<int>(matrices_.size()), "no such matrix");
  Projection out;
  out.weight = matrices_[args.matrix];
  require(k == 0 || out.weight.k == k, "matrix columns do not fit the input");
  if (args.bias >= 0) {
    require(args.bias < static_cast<int>(vectors_.size()) &&
                vectors_[args.bias].size == out.weight.rows,
            "bias does not fit its matrix");
    out.bias = vectors_[args.bias].values;
  }
  return out;
}

NormSpec NativeModel::norm_spec(const NormArgs& args, int width) const {
  NormSpec out;
  out.eps = args.eps;
  out.add_one = args.add_one;
  if (args.weight < 0) return out;
  require(args.weight < static_cast<int>(vectors_.size()) && vectors_[args.weight].size == width,
          "norm weight does not fit its input");
  out.weight = vectors_[args.weight].values;
  return out;
}

void NativeModel::push(RecordKind kind, size_t index) {
  require(!executor_, "the model is finished");
  plan_.order.push_back({kind, static_cast<int32_t>(index)});
}

void NativeModel::set_embed(int matrix, float scale) {
  plan_.embed.table = projection({matrix, -1}, plan_.hidden).weight;
  require(plan_.embed.table.rows >= plan_.vocab, "embedding has fewer rows than the vocabulary");
  plan_.embed.scale = scale;
}

void NativeModel::add_qkv(const NormArgs& norm, const ProjectionArgs& q, const ProjectionArgs& k,
                          const ProjectionArgs& v, const NormArgs& q_norm, const NormArgs& k_norm,
                          int q_rope, int k_rope, int store) {
  require(store >= 0 && store < static_cast<int>(plan_.stores.size()), "no such KV store");
  const KVLayout& layout = plan_.stores[store].layout;
  const int ropes = static_cast<int>(plan_.ropes.size());
  QkvRecord r;
  r.norm = norm_spec(norm, plan_.hidden);
  r.q = projection(q, plan_.hidden);
  r.k = projection(k, plan_.hidden);
  r.v = projection(v, plan_.hidden);
  for (const Projection* p : {&r.q, &r.k, &r.v}) {
    require(p->weight.group_rows == layout.head_dim, "Q, K, V must be packed in groups of a head");
  }
  require(r.k.weight.groups() == layout.num_kv_heads && r.v.weight.groups() == layout.num_kv_heads,
          "K and V must have the store's heads");
  require(r.q.weight.groups() % layout.num_kv_heads == 0, "query heads must divide by KV heads");
  for (int rope : {q_rope, k_rope}) {
    require(rope < ropes && (rope < 0 || plan_.ropes[rope].dim <= layout.head_dim),
            "rope does not fit the head");
  }
  r.q_norm = norm_spec(q_norm, layout.head_dim);
  r.k_norm = norm_spec(k_norm, layout.head_dim);
  r.q_rope = q_rope;
  r.k_rope = k_rope;
  r.store = store;
  plan_.qkv.push_back(r);
  push(RecordKind::kQkv, plan_.qkv.size() - 1);
}

void NativeModel::add_attention(int store, int num_heads, int window, float scale, float softcap) {
  require(!plan_.qkv.empty() && plan_.qkv.back().store == store, "attention must follow its QKV");
  require(num_heads == plan_.qkv.back().q.weight.groups(), "attention heads do not fit Q");
  AttentionRecord r;
  r.store = store;
  r.num_heads = num_heads;
  r.window = window;
  r.scale = scale;
  r.softcap = softcap;
  plan_.attention.push_back(r);
  push(RecordKind::kAttention, plan_.attention.size() - 1);
}

void NativeModel::add_linear(const ProjectionArgs& linear, bool from_glu, float scale) {
  AddLinearRecord r;
  require(from_glu ? !plan_.glu.empty() : !plan_.qkv.empty(), "a projection without its input");
  const int k = from_glu ? plan_.glu.back().gate.weight.rows : plan_.qkv.back().q.weight.rows;
  r.linear = projection(linear, k);
  require(r.linear.weight.rows == plan_.hidden && r.linear.weight.group_rows == plan_.hidden,
          "an added projection must have hidden rows");
  r.source = from_glu ? LinearSource::kGlu : LinearSource::kAttention;
  r.scale = scale;
  // The producer writes what this projection reads.
  const ActKind kind = r.linear.weight.act_kind();
  if (from_glu) {
    plan_.glu.back().out_kind = kind;
  } else {
    plan_.attention.back().out_kind = kind;
  }
  plan_.add_linear.push_back(r);
  push(RecordKind::kAddLinear, plan_.add_linear.size() - 1);
}

void NativeModel::add_glu(const NormArgs& norm, const ProjectionArgs& gate,
                          const ProjectionArgs& up) {
  GluRecord r;
  r.norm = norm_spec(norm, plan_.hidden);
  r.gate = projection(gate, plan_.hidden);
  r.up = projection(up, plan_.hidden);
  require(r.gate.weight.rows == r.up.weight.rows, "gate and up must have the same rows");
  for (const Projection* p : {&r.gate, &r.up}) {
    require(p->weight.group_rows == p->weight.rows, "gate and up are packed as one group");
  }
  plan_.glu.push_back(r);
  push(RecordKind::kGlu, plan_.glu.size() - 1);
}

void NativeModel::set_tail(const NormArgs& norm, const ProjectionArgs& head, float logit_scale) {
  plan_.tail.norm = norm_spec(norm, plan_.hidden);
  plan_.tail.head = projection(head, plan_.hidden);
  require(plan_.tail.head.weight.rows == plan_.vocab &&
              plan_.tail.head.weight.group_rows == plan_.vocab,
          "the head must have vocabulary rows");
  plan_.tail.logit_scale = logit_scale;
}

void NativeModel::finish() {
  require(!executor_, "the model is finished");
  require(plan_.embed.table.data && plan_.tail.head.weight.data, "embedding or head is missing");
  size_t total = 0;
  const size_t blocks = static_cast<size_t>(config_.limits.num_blocks);
  for (const StoreSpec& s : plan_.stores) total += Arena::aligned(blocks * s.layout.block_stride);
  kv_ = Arena(total);
  for (StoreSpec& s : plan_.stores) s.base = kv_.allocate(blocks * s.layout.block_stride);
  executor_ = std::make_unique<Executor>(plan_, config_.limits, *kernels_, *linear_, *pool_);
}

void NativeModel::step(const StepCounts& counts) {
  require(executor_ != nullptr, "the model is not finished");
  require(arrays_.token_ids != nullptr, "no step arrays are bound");
  require(!counts.want_logits || arrays_.logits, "no logits array is bound");
  const std::string error = check_step(arrays_, counts, config_.limits, plan_);
  if (!error.empty()) throw std::invalid_argument(error);
  executor_->run(arrays_, counts);
  ++num_calls_;
}

void NativeModel::copy_block(int source, int destination) {
  const int blocks = config_.limits.num_blocks;
  require(source >= 0 && source < blocks && destination >= 0 && destination < blocks,
          "block id outside the KV cache");
  if (source == destination) return;
  for (const StoreSpec& s : plan_.stores) {
    const size_t stride = s.layout.block_stride;
    std::memcpy(s.base + destination * stride, s.base + source * stride, stride);
  }
}

}  // namespace octavo
