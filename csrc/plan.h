// The lowered model: records in execution order, with pointers into the weight arena. No batch
// shape: every record reads its row counts from the step.
//
// One layer is five phases:
//   QkvRecord        norm -> Q, K, V -> QK-norm -> rope -> KV write     unit: one head
//   AttentionRecord  attention                                         unit: row tile x KV head
//   AddLinearRecord  O projection, added to the residual stream        unit: some panels
//   GluRecord        norm -> gate, up -> act(gate) * up                unit: 64 columns of both
//   AddLinearRecord  down projection, added to the residual stream
#pragma once
#include <cstdint>
#include <vector>

#include "linear.h"
#include "octavo/kernels.h"

namespace octavo {

struct Projection {
  PackedMatrix weight;
  const float* bias = nullptr;  // [rows] or nullptr
};

// y = rms_norm(x) * (weight + add_one); weight == nullptr: y = x.
struct NormSpec {
  const float* weight = nullptr;
  float eps = 0.0f;
  float add_one = 0.0f;
};

struct StoreSpec {
  int32_t group = 0;  // which block table and slot mapping
  int32_t window = 0;
  KVLayout layout;
  uint8_t* base = nullptr;
};

struct QkvRecord {
  NormSpec norm, q_norm, k_norm;
  Projection q, k, v;  // packed in groups of head_dim rows
  int32_t q_rope = -1, k_rope = -1;
  int32_t store = 0;
};

struct AttentionRecord {
  int32_t store = 0;
  int32_t num_heads = 0;
  int32_t window = 0;
  float scale = 1.0f;
  float softcap = 0.0f;
  ActKind out_kind = ActKind::kF32;  // what the O projection reads
};

enum class LinearSource : int32_t { kAttention = 0, kGlu = 1 };

struct AddLinearRecord {
  Projection linear;
  LinearSource source = LinearSource::kAttention;
  float scale = 1.0f;  // of what is added
};

struct GluRecord {
  NormSpec norm;
  Projection gate, up;
  ActKind out_kind = ActKind::kF32;  // what the down projection reads
};

struct TailRecord {
  NormSpec norm;
  Projection head;
  float logit_scale = 1.0f;
};

struct EmbedRecord {
  PackedMatrix table;
  float scale = 1.0f;
};

enum class RecordKind : int32_t { kQkv, kAttention, kAddLinear, kGlu };

struct RecordRef {
  RecordKind kind;
  int32_t index;  // into the plan's vector of that kind
};

struct Plan {
  int32_t vocab = 0;
  int32_t hidden = 0;
  EmbedRecord embed;
  std::vector<RecordRef> order;
  std::vector<QkvRecord> qkv;
  std::vector<AttentionRecord> attention;
  std::vector<AddLinearRecord> add_linear;
  std::vector<GluRecord> glu;
  TailRecord tail;
  std::vector<RopeTable> ropes;
  std::vector<StoreSpec> stores;
};

}  // namespace octavo
