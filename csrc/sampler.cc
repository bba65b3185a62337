// The sampler: one row of logits to one token, its logprob, its rank and the top alternatives.
// Compiled once, without a math library, so a draw is the same bits on every ISA. Knows nothing of
// requests, threads or models. octavo/backends/reference/sampler.py is the same in NumPy.
//
// Meaning (x = logits; a NaN counts as -inf, +inf as the largest float):
//  1. x = -inf outside the allowed-id mask; x += bias, entry by entry (-inf bans).
//  2. penalties for the listed ids, in float: x = x > 0 ? x / repetition : x * repetition; then, for
//     ids with count > 0, x = x - frequency * count; x = x - presence.
//  3. temperature 0: the token is the lowest id with the largest x. Else y = (x - max x) / temperature.
//  4. Order all ids by (x descending, id ascending); each filter keeps a prefix of that order:
//     min_p: y >= log(min_p), that is p >= min_p * p_max; top_k: the first k; top_p: on what
//     both kept, up to and with the id at which the running weight reaches
//     ceil(top_p * total weight), weights = rint(2^40 exp(y)) as integers.
//  5. token = argmax over what is kept of y + Gumbel noise (double), ties to the lowest id; noise from
//     Philox (philox.h): it depends on (seed, sample index, position, token id) alone.
//  No id left (all banned or NaN): sampled = -1; the caller fails that request.
//  Logprob, rank and alternatives are of the logits as they came in: log-softmax over 2^-40 weights;
//  rank = 1 + ids before it in the order of 4 (the vocabulary's size at -inf); alternatives in that
//  order, those at -inf left out (id -1, logprob -inf fill up). A row with report ids lists these in
//  their given order instead.
#include "octavo/kernels.h"

#include <algorithm>

#include "philox.h"
#include "sampler_math.h"
#include "sampler_select.h"

namespace octavo {
namespace {

// Buckets of the top_p histogram over y in [-29, 0]: a bucket is 1/35 wide, so the one that holds
// the border has a few hundred ids of a usual vocabulary.
constexpr float kBucketsPerUnit = 35.0f;
// Up to this many top_k survivors, top_p works on their list instead of the histogram.
constexpr int kListLimit = 4096;

// What min_p, top_k and top_p leave: a prefix of the order, as its last element.
struct Kept {
  float x = -kInf;         // at least this logit
  int32_t id = INT32_MAX;  // and at that logit no higher id
  float y = -kInf;         // and at least this y

  bool operator()(float logit, int32_t token_id) const {
    return logit > x || (logit == x && token_id <= id);
  }
};

struct Tempered {
  float max;
  float temperature;
  float operator()(float x) const { return (clamp_finite(x) - max) / temperature; }
};

uint64_t top_p_target(float top_p, uint64_t total) {
  const double share = static_cast<double>(top_p) * static_cast<double>(total);
  const uint64_t target = static_cast<uint64_t>(std::ceil(share));
  return std::min(std::max<uint64_t>(target, 1), total);
}

void cut_list(const Tempered& temper, float top_p, Candidate* list, int n, Kept* kept) {
  uint64_t total = 0;
  int count = 0;
  for (int i = 0; i < n; ++i) {
    const float y = temper(list[i].x);
    if (!(y >= kept->y)) continue;
    list[count] = list[i];
    list[count].weight = softmax_weight(y);
    total += list[count++].weight;
  }
  const Candidate last = weighted_select(list, count, top_p_target(top_p, total));
  kept->x = last.x;
  kept->id = last.id;
}

// y = x - max with NaN as -inf. Simple loops: each becomes vector code.
void shift_block(const float* x, float max, float* y) {
  for (int i = 0; i < kBlock; ++i) y[i] = x[i] < FLT_MAX ? x[i] : FLT_MAX;
  for (int i = 0; i < kBlock; ++i) y[i] = x[i] > -kInf ? y[i] : -kInf;
  for (int i = 0; i < kBlock; ++i) y[i] = y[i] - max;
}

// y of block b (-inf for what `kept` leaves out) and its histogram buckets.
void place_block(const Row& row, int b, const Tempered& temper, const Kept& kept, float* y,
                 int32_t* bucket) {
  float buffer[kBlock];
  const float* x = row.block(b, buffer);
  shift_block(x, temper.max, y);
  for (int i = 0; i < kBlock; ++i) y[i] = y[i] / temper.temperature;
  for (int i = 0; i < kBlock; ++i) y[i] = y[i] >= kept.y ? y[i] : -kInf;
  if (kept.x > -kInf) {
    for (int i = 0; i < kBlock; ++i) y[i] = kept(clamp_finite(x[i]), b * kBlock + i) ? y[i] : -kInf;
  }
  float place[kBlock];
  for (int i = 0; i < kBlock; ++i) place[i] = y[i] * -kBucketsPerUnit;
  for (int i = 0; i < kBlock; ++i) place[i] = place[i] < kBuckets - 1 ? place[i] : kBuckets - 1;
  for (int i = 0; i < kBlock; ++i) bucket[i] = static_cast<int32_t>(place[i]);
}

bool block_counts(const Row& row, int b, const Tempered& temper, const Kept& kept) {
  if (row.maxima[b] == -kInf || row.maxima[b] < kept.x) return false;
  const float y = temper(row.maxima[b]);
  return y > kWeightFloor && y >= kept.y;
}

void cut_histogram(const Row& row, const Tempered& temper, float top_p, const Scratch& scratch,
                   Kept* kept) {
  uint64_t* histogram = scratch.histogram;
  std::fill(histogram, histogram + kBuckets, uint64_t{0});
  float y[kBlock];
  uint64_t weight[kBlock];
  int32_t bucket[kBlock];
  for (int b = 0; b < row.blocks; ++b) {
    if (!block_counts(row, b, temper, *kept)) continue;
    place_block(row, b, temper, *kept, y, bucket);
    softmax_weights<kBlock>(y, weight);
    for (int i = 0; i < kBlock; ++i) histogram[bucket[i]] += weight[i];
  }
  uint64_t total = 0;
  for (int i = 0; i < kBuckets; ++i) total += histogram[i];
  uint64_t target = top_p_target(top_p, total);
  int border = 0;
  while (border < kBuckets - 1 && histogram[border] < target) target -= histogram[border++];
  int n = 0;
  for (int b = 0; b < row.blocks; ++b) {
    if (!block_counts(row, b, temper, *kept)) continue;
    if (temper(row.maxima[b]) * -kBucketsPerUnit >= static_cast<float>(border + 1)) continue;
    place_block(row, b, temper, *kept, y, bucket);
    for (int i = 0; i < kBlock; ++i) {
      if (bucket[i] != border || !(y[i] > kWeightFloor)) continue;
      const int id = b * kBlock + i;
      scratch.list[n++] = Candidate{clamp_finite(row.x[id]), id, softmax_weight(y[i])};
    }
  }
  const Candidate last = weighted_select(scratch.list, n, target);
  kept->x = last.x;
  kept->id = last.id;
}

Kept filter_row(const Row& row, const SamplingInputs& in, int r, const Scratch& scratch) {
  Kept kept;
  const Tempered temper{row.max, in.temperature[r]};
  if (in.min_p[r] > 0.0f) {
    kept.y = std::min(static_cast<float>(log_double(in.min_p[r])), 0.0f);
  }
  const int top_k = in.top_k[r];
  int listed = 0;
  if (top_k > 0 && top_k < row.vocab) {
    listed = select_top(row, top_k, scratch);
    if (listed == top_k) {
      kept.x = scratch.list[top_k - 1].x;
      kept.id = scratch.list[top_k - 1].id;
    }
  }
  if (!(in.top_p[r] < 1.0f)) return kept;
  if (listed > 0 && listed <= kListLimit) {
    cut_list(temper, in.top_p[r], scratch.list, listed, &kept);
  } else {
    cut_histogram(row, temper, in.top_p[r], scratch, &kept);
  }
  return kept;
}

// The largest y + noise so far.
struct Leader {
  double score;
  int32_t id;
  void offer(double y, uint32_t word, int32_t token_id) {
    const double s = y + gumbel(word);
    if (s > score || (s == score && token_id < id)) {
      score = s;
      id = token_id;
    }
  }
};

// Smallest noise word with which an id `gap` below the leader could still win: the noise must exceed
// gap, so u > exp(-exp(-gap)) >= 1 - exp(-gap). The margin (0.01) covers all rounding.
uint32_t least_word(double gap) {
  if (gap < 0.02) return 0;
  const double u = 1.0 - exp_double(-(gap - 0.01));
  return static_cast<uint32_t>(u * 4294967295.0);
}

int32_t draw(const Row& row, const SamplingInputs& in, int r, const Kept& kept) {
  const Tempered temper{row.max, in.temperature[r]};
  const NoiseKey key{in.seed[r], static_cast<uint32_t>(in.position[r]),
                     static_cast<uint32_t>(in.sample_index[r])};
  uint32_t words[kBlock];
  float buffer[kBlock];
  // The likeliest id first: it is always kept, and a good leader lets most blocks be skipped.
  noise_block(key, static_cast<uint32_t>(row.best / kBlock * kBlock), words);
  Leader leader{-1e300, row.best};
  leader.offer(0.0, words[row.best % kBlock], row.best);
  for (int b = 0; b < row.blocks; ++b) {
    const float m = row.maxima[b];
    if (m < kept.x || m == -kInf) continue;
    const float highest = temper(m);
    const double gap = leader.score - highest;
    if (highest < kept.y || gap > kGumbelMax + 0.01) continue;
    noise_block(key, static_cast<uint32_t>(b * kBlock), words);
    const uint32_t least = least_word(gap);
    uint32_t highest_word = 0;
    for (int i = 0; i < kBlock; ++i) highest_word = std::max(highest_word, words[i]);
    if (highest_word < least) continue;
    const float* x = row.block(b, buffer);
    for (int i = 0; i < kBlock; ++i) {
      if (words[i] < least || !(x[i] > -kInf)) continue;
      const int32_t id = b * kBlock + i;
      const float y = temper(x[i]);
      if (y >= kept.y && kept(clamp_finite(x[i]), id)) leader.offer(y, words[i], id);
    }
  }
  return leader.id;
}

void apply_mask(float* x, int vocab, const uint32_t* mask, int words, float* maxima) {
  for (int w = 0; w * 32 < vocab; ++w) {
    const uint32_t bits = w < words ? mask[w] : 0;
    if (bits == 0xffffffffu) continue;
    float* p = x + w * 32;
    const int n = std::min(32, vocab - w * 32);
    for (int i = 0; i < n; ++i) p[i] = ((bits >> i) & 1u) ? p[i] : -kInf;
    maxima[w * 32 / kBlock] = kStale;
  }
}

void apply_penalties(float* x, int vocab, const SamplingInputs& in, int r, float* maxima) {
  const float repetition = in.repetition_penalty[r];
  const float presence = in.presence_penalty[r];
  const float frequency = in.frequency_penalty[r];
  if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
  for (int i = in.penalty_start[r]; i < in.penalty_start[r + 1]; ++i) {
    const int32_t id = in.penalty_ids[i];
    if (id < 0 || id >= vocab) continue;
    float v = x[id];
    v = v > 0.0f ? v / repetition : v * repetition;
    if (in.penalty_counts[i] > 0) {
      v = v - frequency * static_cast<float>(in.penalty_counts[i]);
      v = v - presence;
    }
    x[id] = v;
    maxima[id / kBlock] = kStale;
  }
}

// Steps 1 and 2, on the logits and their block maxima; NaN and +inf are dealt with by the readers.
void process_row(float* x, int vocab, const SamplingInputs& in, int r, float* maxima) {
  if (in.mask_index[r] >= 0) {
    const int64_t offset = static_cast<int64_t>(in.mask_index[r]) * in.mask_words;
    apply_mask(x, vocab, in.masks + offset, in.mask_words, maxima);
  }
  for (int i = in.bias_start[r]; i < in.bias_start[r + 1]; ++i) {
    const int32_t id = in.bias_ids[i];
    if (id < 0 || id >= vocab) continue;
    x[id] += in.bias_values[i];
    maxima[id / kBlock] = kStale;
  }
  apply_penalties(x, vocab, in, r, maxima);
  refresh_maxima(x, vocab, maxima);
}

bool changes_logits(const SamplingInputs& in, int r) {
  return in.mask_index[r] >= 0 || in.bias_start[r + 1] > in.bias_start[r] ||
         in.penalty_start[r + 1] > in.penalty_start[r];
}

double log_total(const Row& row) {
  const Tempered temper{row.max, 1.0f};
  float buffer[kBlock];
  uint64_t total = 0;
  for (int b = 0; b < row.blocks; ++b) {
    if (!(temper(row.maxima[b]) > kWeightFloor)) continue;
    const float* x = row.block(b, buffer);
    float y[kBlock];
    uint64_t weight[kBlock];
    shift_block(x, row.max, y);
    softmax_weights<kBlock>(y, weight);
    for (int i = 0; i < kBlock; ++i) total += weight[i];
  }
  return log_double(static_cast<double>(total) / kWeightOne);
}

float logprob_of(const Row& row, double log_sum, float x) {
  if (!(x > -kInf)) return -kInf;
  const double shifted = static_cast<double>(clamp_finite(x)) - static_cast<double>(row.max);
  return static_cast<float>(shifted - log_sum);
}

int32_t rank_of(const Row& row, int32_t id) {
  const float raw = row.x[id];
  if (!(raw > -kInf)) return row.vocab;
  const float x = clamp_finite(raw);
  int32_t above = 0;
  float buffer[kBlock];
  for (int b = 0; b < row.blocks; ++b) {
    if (!(row.maxima[b] >= x)) continue;
    const float* p = row.block(b, buffer);
    const int lower = std::min(std::max(id - b * kBlock, 0), kBlock);
    int32_t n = 0;
    for (int i = 0; i < kBlock; ++i) n += clamp_finite(p[i]) > x && p[i] > x;
    for (int i = 0; i < lower; ++i) n += clamp_finite(p[i]) == x && p[i] >= x;
    above += n;
  }
  return above + 1;
}

void report_top(const Row& row, double log_sum, int wanted, const Scratch& scratch, int32_t* ids,
                float* logprobs) {
  const int n = select_top(row, std::min(wanted, row.vocab), scratch);
  std::sort(scratch.list, scratch.list + n, Before());
  for (int i = 0; i < n; ++i) {
    ids[i] = scratch.list[i].id;
    logprobs[i] = logprob_of(row, log_sum, scratch.list[i].x);
  }
}

// The listed ids in their order, whatever their likelihood.
void report_listed(const Row& row, double log_sum, const int32_t* listed, int n, int32_t* ids,
                   float* logprobs) {
  for (int i = 0; i < n; ++i) {
    ids[i] = listed[i];
    logprobs[i] = logprob_of(row, log_sum, row.x[listed[i]]);
  }
}

int32_t choose(const Row& row, const SamplingInputs& in, int r, const Scratch& scratch) {
  if (row.best < 0 || !(in.temperature[r] > 0.0f)) return row.best;
  return draw(row, in, r, filter_row(row, in, r, scratch));
}

}  // namespace

size_t sample_scratch_bytes(int vocab) {
  const size_t v = static_cast<size_t>(vocab), b = static_cast<size_t>(num_blocks(vocab));
  return aligned(v * sizeof(float)) + 2 * aligned(b * sizeof(float)) +
         aligned(v * sizeof(Candidate)) + kBuckets * sizeof(uint64_t) + 64;
}

bool draws_argmax(const SamplingInputs& in, int r) {
  return in.target_ids[r] < 0 && in.num_logprobs[r] < 0 && !changes_logits(in, r) &&
         !(in.temperature[r] > 0.0f);
}

void sample_row(float* logits, float* maxima, int vocab, const SamplingInputs& in, int r,
                const SamplingOutputs& out, void* memory) {
  const Scratch scratch = carve(memory, vocab);
  int32_t* top_ids = out.top_ids + static_cast<int64_t>(r) * out.top_stride;
  float* top_logprobs = out.top_logprobs + static_cast<int64_t>(r) * out.top_stride;
  for (int i = 0; i < out.top_stride; ++i) {
    top_ids[i] = -1;
    top_logprobs[i] = -kInf;
  }
  out.logprob[r] = -kInf;
  out.rank[r] = 0;
  const int32_t target = in.target_ids[r];
  const bool scores = target >= 0;
  const bool reports = scores || in.num_logprobs[r] >= 0;
  const bool changes = !scores && changes_logits(in, r);
  Row raw{};
  double log_sum = 0.0;
  if (reports || !changes) raw = row_of(logits, vocab, maxima);
  if (reports && raw.best >= 0) {
    log_sum = log_total(raw);
    const int wanted = std::min(in.num_logprobs[r], out.top_stride);
    const int first = in.report_start[r];
    const int listed = std::min(in.report_start[r + 1] - first, out.top_stride);
    if (listed > 0) {
      report_listed(raw, log_sum, in.report_ids + first, listed, top_ids, top_logprobs);
    } else if (wanted > 0) {
      report_top(raw, log_sum, wanted, scratch, top_ids, top_logprobs);
    }
  }
  int32_t token = target;
  if (!scores && !changes) {
    token = choose(raw, in, r, scratch);
  } else if (!scores) {
    float* x = logits;
    float* of_x = maxima;
    if (reports) {  // which are of the logits as they came in
      x = std::copy(logits, logits + vocab, scratch.work) - vocab;
      of_x = std::copy(maxima, maxima + raw.blocks, scratch.maxima) - raw.blocks;
    }
    process_row(x, vocab, in, r, of_x);
    token = choose(row_of(x, vocab, of_x), in, r, scratch);
  }
  out.sampled[r] = token;
  if (!reports || token < 0 || token >= vocab || raw.best < 0) return;
  out.logprob[r] = logprob_of(raw, log_sum, logits[token]);
  out.rank[r] = rank_of(raw, token);
}

}  // namespace octavo
