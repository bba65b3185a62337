// Selection over one row of logits for the sampler, starting from block maxima: the first k in the
// sampler's order, and the scratch memory all of it uses. Private to sampler.cc.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "octavo/kernels.h"
#include "philox.h"

namespace octavo {
namespace {

constexpr int kBlock = kLogitBlock;  // ids per block maximum and per noise call
static_assert(kLogitBlock == kNoiseBlock, "a block's noise is made in one call");
constexpr float kInf = __builtin_inff();
constexpr int kBuckets = 1024;  // of the top_p histogram

struct Candidate {
  float x;
  int32_t id;
  uint64_t weight;
};

// The order of all selections: larger logit first, then lower id.
struct Before {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.x > b.x || (a.x == b.x && a.id < b.id);
  }
};
struct Greater {
  bool operator()(float a, float b) const { return a > b; }
};

struct Scratch {
  float* work;         // [vocab] copy of the logits, where they must survive
  float* maxima;       // [blocks] of `work`
  float* maxima_copy;  // [blocks]
  Candidate* list;     // [vocab]
  uint64_t* histogram;  // [kBuckets]
};

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
int num_blocks(int vocab) { return (vocab + kBlock - 1) / kBlock; }

Scratch carve(void* memory, int vocab) {
  const uintptr_t address = (reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64;
  uint8_t* p = reinterpret_cast<uint8_t*>(address);
  const size_t v = static_cast<size_t>(vocab), b = static_cast<size_t>(num_blocks(vocab));
  Scratch s;
  s.work = reinterpret_cast<float*>(p);
  p += aligned(v * sizeof(float));
  s.maxima = reinterpret_cast<float*>(p);
  p += aligned(b * sizeof(float));
  s.maxima_copy = reinterpret_cast<float*>(p);
  p += aligned(b * sizeof(float));
  s.list = reinterpret_cast<Candidate*>(p);
  p += aligned(v * sizeof(Candidate));
  s.histogram = reinterpret_cast<uint64_t*>(p);
  return s;
}

// A row of logits with the maximum of every block of ids.
struct Row {
  const float* x;
  int vocab;
  int blocks;
  const float* maxima;
  float max;     // -inf when nothing may be drawn
  int32_t best;  // lowest id with the maximum, -1 when none

  // Block b as kBlock floats; a short last block is filled with -inf in `buffer`.
  const float* block(int b, float* buffer) const {
    const float* p = x + static_cast<int64_t>(b) * kBlock;
    const int n = vocab - b * kBlock;
    if (n >= kBlock) return p;
    for (int i = 0; i < kBlock; ++i) buffer[i] = i < n ? p[i] : -kInf;
    return buffer;
  }
};

float clamp_finite(float x) { return x < FLT_MAX ? x : FLT_MAX; }  // not for NaN

// As Kernels::block_maxima, of one block.
float block_max(const float* x) {
  float lane[8];
  for (int i = 0; i < 8; ++i) lane[i] = -kInf;
  for (int j = 0; j < kBlock; j += 8) {
    for (int i = 0; i < 8; ++i) lane[i] = x[j + i] > lane[i] ? x[j + i] : lane[i];
  }
  float m = lane[0];
  for (int i = 1; i < 8; ++i) m = lane[i] > m ? lane[i] : m;
  return clamp_finite(m) + 0.0f;
}

// A maximum that no longer holds, because a logit of its block has changed, is NaN until
// refresh_maxima.
constexpr float kStale = __builtin_nanf("");

void refresh_maxima(const float* x, int vocab, float* maxima) {
  const Row row{x, vocab, num_blocks(vocab), maxima, -kInf, -1};
  float buffer[kBlock];
  for (int b = 0; b < row.blocks; ++b) {
    if (maxima[b] != maxima[b]) maxima[b] = block_max(row.block(b, buffer));
  }
}

// The row with its maximum: a pass over the block maxima and one over the first block that has it.
Row row_of(const float* x, int vocab, const float* maxima) {
  Row row{x, vocab, num_blocks(vocab), maxima, -kInf, -1};
  int best_block = -1;
  for (int b = 0; b < row.blocks; ++b) {
    if (maxima[b] > row.max) {
      row.max = maxima[b];
      best_block = b;
    }
  }
  if (best_block < 0) return row;
  float buffer[kBlock];
  const float* p = row.block(best_block, buffer);
  int i = 0;
  while (!(p[i] >= row.max)) ++i;
  row.best = best_block * kBlock + i;
  return row;
}

// The candidates at or above `bound` into `list`; returns their number. Never -inf or NaN.
int gather(const Row& row, float bound, Candidate* list) {
  float buffer[kBlock];
  int n = 0;
  for (int b = 0; b < row.blocks; ++b) {
    if (!(row.maxima[b] >= bound) || row.maxima[b] == -kInf) continue;
    const float* x = row.block(b, buffer);
    const int count = std::min(kBlock, row.vocab - b * kBlock);
    for (int i = 0; i < count; ++i) {
      if (!(x[i] >= bound) || x[i] == -kInf) continue;
      list[n++] = Candidate{clamp_finite(x[i]), b * kBlock + i, 0};
    }
  }
  return n;
}

// The first k ids of the order into list[0 .. result), unsorted but for the last of them. The k-th
// largest block maximum is a lower bound of the k-th largest logit, so few blocks are looked at.
int select_top(const Row& row, int k, const Scratch& scratch) {
  float bound = -kInf;
  if (k <= row.blocks) {
    std::copy(row.maxima, row.maxima + row.blocks, scratch.maxima_copy);
    std::nth_element(scratch.maxima_copy, scratch.maxima_copy + (k - 1),
                     scratch.maxima_copy + row.blocks, Greater());
    bound = scratch.maxima_copy[k - 1];
  }
  const int n = gather(row, bound, scratch.list);
  if (n > k) std::nth_element(scratch.list, scratch.list + (k - 1), scratch.list + n, Before());
  return std::min(n, k);
}

// Candidate of list[0 .. n) at which the running weight in order reaches `target`.
Candidate weighted_select(Candidate* list, int n, uint64_t target) {
  uint64_t before = 0;
  while (n > 64) {
    const int half = n / 2;
    std::nth_element(list, list + half, list + n, Before());
    uint64_t mass = 0;
    for (int i = 0; i < half; ++i) mass += list[i].weight;
    if (before + mass >= target) {
      n = half;
    } else {
      before += mass;
      list += half;
      n -= half;
    }
  }
  std::sort(list, list + n, Before());
  for (int i = 0; i < n - 1; ++i) {
    before += list[i].weight;
    if (before >= target) return list[i];
  }
  return list[n - 1];
}

}  // namespace
}  // namespace octavo
