// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011). Pure functions of key and counter; no state.
#pragma once
#include <cstdint>

namespace octavo {

// Noise of one draw: key = seed (low word first), counter = (token_id / 4, position, sample_index, 0);
// word token_id % 4 of the result belongs to token_id.
struct NoiseKey {
  uint64_t seed;
  uint32_t position;
  uint32_t sample_index;
};

// Token ids one call of noise_block covers: 16 counters side by side hide the latency of the rounds.
constexpr int kNoiseBlock = 64;

// Words of tokens first .. first + 63; first is a multiple of 4.
static inline void noise_block(const NoiseKey& key, uint32_t first, uint32_t* words) {
  constexpr int kWidth = kNoiseBlock / 4;
  uint32_t c0[kWidth], c1[kWidth], c2[kWidth], c3[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    c0[i] = first / 4 + static_cast<uint32_t>(i);
    c1[i] = key.position;
    c2[i] = key.sample_index;
    c3[i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(key.seed);
  uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1  // unrolled first, it would not become vector code
    for (int i = 0; i < kWidth; ++i) {
      const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0[i];
      const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kWidth; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

}  // namespace octavo
