// What the kernels' self-test draws its values from and reports to. Included by isa_selftest.cc alone.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace octavo {
namespace {

constexpr int kMostReports = 10;

// Deterministic (the SplitMix64 generator, Steele, Lea & Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t word() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(word() % static_cast<uint64_t>(n)); }
  // Mostly of ordinary size, a few large, tiny, subnormal or zero of either sign.
  float value() {
    const int64_t bits = static_cast<int64_t>(word() >> 40) - (1 << 23);
    const float unit = static_cast<float>(bits) / (1 << 23);
    static const float odd[] = {0.0f, -0.0f, 1e-41f, -1e-38f, 3e4f, -3e4f, 1e-20f, 88.0f};
    const int pick = below(64);
    return pick < 8 ? odd[pick] : 4.0f * unit;
  }
  std::vector<float> values(size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = value();
    return v;
  }

 private:
  uint64_t state_;
};

class Report {
 public:
  explicit Report(const char* isa) : isa_(isa) {}

  // One call's results; `what` is made of the shape.
  void same(const std::string& what, const void* expected, const void* found, size_t bytes) {
    ++calls_;
    if (digested_) {
      // FNV-1a over bytes
      const uint8_t* bytes_in = static_cast<const uint8_t*>(expected);
      for (size_t i = 0; i < bytes; ++i) digest_ = (digest_ ^ bytes_in[i]) * 0x100000001B3u;
    }
    if (std::memcmp(expected, found, bytes) == 0) return;
    if (++wrong_ > kMostReports) return;
    const uint8_t* e = static_cast<const uint8_t*>(expected);
    const uint8_t* f = static_cast<const uint8_t*>(found);
    size_t at = 0;
    while (e[at] == f[at]) ++at;
    std::printf("%s: %s: byte %zu of %zu is %02x, not %02x\n", isa_, what.c_str(), at, bytes, f[at],
                e[at]);
  }
  // NaN made by an operation has another sign on x86 than on Arm: not for the digest.
  void digest_what_follows(bool yes) { digested_ = yes; }
  bool finish(const char* of) const {
    std::printf("%s: %s: %d calls compared, %d differ, digest %016llx\n", isa_, of, calls_, wrong_,
                static_cast<unsigned long long>(digest_));
    return wrong_ == 0;
  }

 private:
  const char* isa_;
  int calls_ = 0;
  int wrong_ = 0;
  bool digested_ = true;
  uint64_t digest_ = 0xCBF29CE484222325u;
};

std::string text(const char* name, std::initializer_list<int> numbers) {
  std::string out = name;
  for (int n : numbers) out += " " + std::to_string(n);
  return out;
}

}  // namespace
}  // namespace octavo
