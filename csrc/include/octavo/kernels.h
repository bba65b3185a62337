// The kernel table: raw pointers and sizes only. One table per ISA, chosen at run time.
//
// Bit rules (the generic table is the bit oracle, and every other table must equal it bit for bit for
// integer weights and for everything that is not a matrix product over float weights):
//  - every float sum has one order: K ascending; cross-lane folds go through 16 virtual lanes
//    (element i belongs to lane i % 16, lanes accumulate in ascending i) folded by the fixed tree
//    8+8, 4+4, 2+2, 1+1: lane j += lane j + 8, then + 4, + 2, + 1;
//  - every multiply-add is a fused one (std::fma or an FMA intrinsic), written out;
//  - no result depends on the number of rows, panels or threads of a call.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

// Groups of 32 columns share one activation scale.
constexpr int kQuantGroup = 32;
// Weight rows of a panel and tokens of a K tile: one per lane of a 512-bit register.
constexpr int kLanes = 16;

// How the rows that enter a matrix product are stored.
enum class ActKind : int32_t { kF32 = 0, kBF16 = 1, kI8 = 2 };

// m rows of k activations. I8: scale = absmax / 127 of each group of 32 columns, rounded up to 11
// significant bits (its product with an f16 weight scale is exact), q = rint(x / scale), 0 for a group
// of zeros; isum = sum of the 32 q, isum_low = of the first 16 of them, fsum = scale * float(isum).
struct ActRows {
  ActKind kind;
  int32_t k;          // columns, a multiple of 32 for I8
  float* f32;         // [m][k]
  uint16_t* bf16;     // [m][k]
  int8_t* q;          // [m][k]
  float* scale;       // [m][k / 32]
  int32_t* isum;      // [m][k / 32]
  float* fsum;        // [m][k / 32]
  int32_t* isum_low;  // [m][k / 32]
};

enum class KVDtype : int32_t { kF32 = 0, kBF16 = 1, kI8 = 2 };

// One layer's KV cache. A block holds block_size tokens (a multiple of 16) for every KV head:
//   [head][ K tiles: block_size/16 x [head_dim/q][16 tokens][q] | V | K scales [block_size] f32
//          | V scales [block_size] f32 (int8 only) ]
// q packs 4 bytes a token: 1 element for f32, 2 for bf16, 4 for int8 (so a K tile has the same shape
// as a 16-row weight panel). V is [block_size][head_dim] for f32 and bf16; for int8 it is
// block_size/16 tiles x [chunks of 16 columns, the last may be narrower][4 quads][columns][4 tokens].
// int8 keys are stored with 128 added, values as they are. head_stride is padded to 64 bytes.
struct KVLayout {
  KVDtype dtype;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
  size_t block_stride;    // bytes of one block of one layer
  size_t head_stride;     // bytes of one head in it
  size_t v_offset;        // from the head's start
  size_t k_scale_offset;  // from the head's start (int8)
  size_t v_scale_offset;
};

KVLayout make_kv_layout(KVDtype dtype, int num_kv_heads, int head_dim, int block_size);

// Positions of one softmax split: split s is positions s * kSplit .. (s + 1) * kSplit - 1. Part of
// attention's definition: never tune.
constexpr int kSplit = 256;

// One row of a call that computes splits several sequences have in common.
struct AttentionMember {
  const float* q;    // of the KV head's query group
  float* partials;   // the row's own, as in AttentionArgs with rows = 1
  int32_t position;  // of the row
};

// Attention of `rows` consecutive positions of one sequence for one KV head and its query group:
// whole, or some splits of it into `partials`, to be merged when all of them are there.
// With `members`, rows come from different sequences whose tables agree on the splits asked for;
// block_table is any of theirs, and q, first_position, partials and out are not read.
struct AttentionArgs {
  const KVLayout* layout;
  const uint8_t* kv;           // the layer's first block
  const int32_t* block_table;  // of the sequence
  int32_t kv_head;
  int32_t group;           // query heads per KV head
  int32_t rows;            // query rows
  int32_t first_position;  // of row 0; row i attends to positions .. first_position + i
  int32_t window;          // 0 = none; else only the last `window` positions
  float scale;
  float softcap;     // 0 = none
  const float* q;    // row i, head g at q + i * q_stride + g * head_dim
  int64_t q_stride;  // floats
  float* out;        // same shape and addressing as q, with out_stride
  int64_t out_stride;
  float* scratch;  // attention_scratch_floats(...) floats, private to the thread
  float* partials;      // nullptr = whole; else a row per split from first_split on and query:
                        // [splits][rows * group][partial_row_floats(head_dim)], 64-byte aligned
  const AttentionMember* members;  // nullptr, or [rows]
  int32_t first_split;  // of partials
  int32_t begin_split;  // splits begin_split .. end_split - 1 are computed
  int32_t end_split;
};

// A partial result: maximum, sum, padding to 64 bytes, then o padded to 16 floats.
constexpr int partial_row_floats(int head_dim) { return kLanes + (head_dim + 15) / 16 * 16; }

struct RopeTable {
  const float* cos;  // [max_position][dim / 2]
  const float* sin;
  int32_t dim;
  bool interleaved;  // pairs (2i, 2i + 1), else (i, i + dim / 2)
};

// Logits for which the sampler wants one maximum: it looks into blocks only where these say so.
constexpr int kLogitBlock = 64;
constexpr int num_logit_blocks(int vocab) { return (vocab + kLogitBlock - 1) / kLogitBlock; }

struct Kernels {
  const char* isa;

  // x: m rows of k floats, stride ldx. y = rms_norm(x) * (w + add_one), then stored in out as out->kind
  // says, rows out_row .. out_row + m - 1. w == nullptr: no norm, only the conversion.
  // mean = fold16(sum over i of fma(x, x, .)) / k; r = 1 / sqrt(mean + eps); y = (x * r) * w.
  void (*norm_rows)(const float* x, int64_t ldx, int m, int k, const float* w, float add_one,
                    float eps, ActRows* out, int out_row);

  // RMS norm in place of one head (QK-norm), the same arithmetic, result float.
  void (*head_norm)(float* x, int dim, const float* w, float add_one, float eps);

  // Rotates one head in place by position. a' = fma(a, c, -(b * s)), b' = fma(b, c, a * s).
  void (*rope)(float* x, const RopeTable* table, int32_t position);

  // Stores k and v (head_dim floats each) of one token and head at a slot of the layer.
  // bf16: round to nearest even. int8: scale = absmax / 127 for each of K and V, rint(x / scale).
  void (*kv_write)(const KVLayout* layout, uint8_t* kv, int64_t slot, int head, const float* k,
                   const float* v);

  // Two-phase softmax inside absolute splits of 256 positions, splits merged in ascending order.
  // With partials, `out` is left alone.
  void (*attention)(const AttentionArgs* args);

  // out from the partials of all splits: the same bits as attention without partials.
  void (*attention_merge)(const AttentionArgs* args);

  // gate, up: m rows of n floats (stride ld); out = silu(gate) * up stored as out->kind says at
  // columns col .. col + n - 1 of rows out_row ... n is a multiple of 32 for I8.
  void (*silu_mul)(const float* gate, const float* up, int64_t ld, int m, int n, ActRows* out,
                   int out_row, int col);

  // x: m rows of n logits, stride ldx. maxima[row * ldm + b] = the largest of the row's logits
  // kLogitBlock * b .. (the last block may be short) as the sampler orders them: NaN left out, -inf
  // where nothing is left, +inf as the largest float, and -0 as 0.
  void (*block_maxima)(const float* x, int64_t ldx, int m, int n, float* maxima, int64_t ldm);
};

// Floats of scratch one attention call needs.
size_t attention_scratch_floats(int rows, int group, int head_dim);

const Kernels* kernels_generic();
// Each nullptr where the build or the CPU lacks it.
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
const Kernels* kernels_neon();

// Per row r of R: see octavo/graph/step_arrays.py (SamplingArrays), same names and types.
struct SamplingInputs {
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const float* repetition_penalty;
  const float* presence_penalty;
  const float* frequency_penalty;
  const uint64_t* seed;
  const int32_t* sample_index;
  const int32_t* position;
  const int32_t* target_ids;
  const int32_t* num_logprobs;
  const int32_t* mask_index;
  const uint32_t* masks;  // [n_masks][mask_words]
  int32_t mask_words;
  const int32_t* penalty_start;
  const int32_t* penalty_ids;
  const int32_t* penalty_counts;
  const int32_t* bias_start;
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* report_start;
  const int32_t* report_ids;
};

struct SamplingOutputs {
  int32_t* sampled;
  float* logprob;
  int32_t* rank;
  int32_t* top_ids;  // [R][top_stride]
  float* top_logprobs;
  int32_t top_stride;
};

// Draws (or scores) row `row` from `logits` [vocab] and their block maxima, both of which it may
// overwrite. `scratch` holds sample_scratch_bytes(vocab) bytes, private to the thread. Compiled
// once, the same on every ISA.
void sample_row(float* logits, float* maxima, int vocab, const SamplingInputs& in, int row,
                const SamplingOutputs& out, void* scratch);
size_t sample_scratch_bytes(int vocab);
// Whether sample_row takes the argmax of the logits as they are, and reports nothing else. It then
// reads, beside the block maxima, only the first block with the largest.
bool draws_argmax(const SamplingInputs& in, int row);

}  // namespace octavo
