#include "probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "arena.h"
#include "thread_pool.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

// Work a thread takes at a time when reading: some microseconds, so that taking it costs nothing
// beside it, and small enough for a footprint of 1 MB to be shared by several threads.
constexpr size_t kReadUnit = 64 * 1024;
// Rounds of one dot-product unit: tens of microseconds on any CPU.
constexpr int64_t kDotRounds = 4096;
constexpr int kUnitsPerThread = 8;
constexpr double kWakeLimit = 0.05;
constexpr double kBarrierUnit = 5e-6;
// Longer than the pool polls before it sleeps.
constexpr auto kFallAsleep = std::chrono::milliseconds(2);

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Results go here, so that the compiler must make them.
volatile float float_sink;
volatile uint64_t word_sink;

// Calls run(units) with ever more units until it takes `seconds`; returns that number of units.
template <class Run>
int64_t calibrate(int64_t units, double seconds, Run&& run) {
  constexpr int64_t kMost = 1 << 30;
  for (;;) {
    const double took = run(units);
    if (took >= seconds || units >= kMost) return units;
    const double grow = std::min(8.0, std::max(1.2, seconds * 1.1 / std::max(took, 1e-7)));
    units = std::min(kMost, static_cast<int64_t>(static_cast<double>(units) * grow) + 1);
  }
}

}  // namespace

#ifndef OCTAVO_HAVE_AVX512
const ProbeTable* probe_avx512() { return nullptr; }
#endif
#ifndef OCTAVO_HAVE_AVX512BF16
const ProbeTable* probe_avx512bf16() { return nullptr; }
#endif

std::vector<const ProbeTable*> probe_tables() {
  std::vector<const ProbeTable*> tables;
  for (const ProbeTable* table : {probe_generic(), probe_avx512(), probe_avx512bf16()}) {
    if (table) tables.push_back(table);
  }
  return tables;
}

const DotForm& probe_form(const ProbeTable& table, const std::string& kind) {
  if (kind == "int8") return table.int8;
  if (kind == "bf16") return table.bf16;
  if (kind == "f32") return table.f32;
  throw std::invalid_argument("kind must be int8, bf16 or f32");
}

std::vector<double> probe_dot(const DotForm& form, ProbeThreads threads, int samples,
                              double milliseconds) {
  ThreadPool pool(threads.threads, threads.usable_cpus);
  alignas(64) uint8_t operands[256];
  std::memset(operands, 1, sizeof(operands));
  const int units = pool.size() * kUnitsPerThread;
  auto run = [&](int64_t repeats) {
    auto body = [&](Spmd& spmd) {
      spmd.for_units(units, [&](int) { float_sink = form.run(operands, kDotRounds * repeats); });
    };
    const auto start = Clock::now();
    pool.run(body);
    return seconds_since(start);
  };
  const int64_t repeats = calibrate(1, milliseconds / 1000, run);
  std::vector<double> rates;
  for (int i = 0; i < samples; ++i) {
    const double macs = static_cast<double>(form.macs_per_round * kDotRounds * repeats) * units;
    rates.push_back(macs / run(repeats));
  }
  return rates;
}

std::vector<double> probe_read(ReadProbe read, size_t footprint, ProbeThreads threads, int samples,
                               double milliseconds) {
  ThreadPool pool(threads.threads, threads.usable_cpus);
  const int64_t n = pool.size();
  // Whole units for each thread.
  const int64_t share = std::max<int64_t>(1, static_cast<int64_t>(footprint / kReadUnit) / n);
  const size_t bytes = static_cast<size_t>(share * n) * kReadUnit;
  Arena arena(bytes + 64);
  uint8_t* data = arena.allocate(bytes);
  auto touch = [&](Spmd& spmd) {
    spmd.for_units(static_cast<int>(share * n),
                   [&](int u) { std::memset(data + u * kReadUnit, u & 127, kReadUnit); });
  };
  pool.run(touch);
  auto run = [&](int64_t passes) {
    const int64_t per_thread = share * passes;
    auto body = [&](Spmd& spmd) {
      spmd.for_units(static_cast<int>(per_thread * n), [&](int u) {
        const int64_t owner = u / per_thread;
        const int64_t unit = owner * share + (u % per_thread) % share;
        word_sink = read(data + unit * static_cast<int64_t>(kReadUnit), kReadUnit);
      });
    };
    const auto start = Clock::now();
    pool.run(body);
    return seconds_since(start);
  };
  const int64_t passes = calibrate(1, milliseconds / 1000, run);
  std::vector<double> rates;
  for (int i = 0; i < samples; ++i) {
    rates.push_back(static_cast<double>(bytes) * static_cast<double>(passes) / run(passes));
  }
  return rates;
}

std::vector<double> probe_barrier(ProbeThreads threads, int samples, int phases) {
  ThreadPool pool(threads.threads, threads.usable_cpus);
  // A unit long enough for every thread to take one of its own: with empty units one thread would
  // do them all, and there would be nobody to wait for.
  auto unit = [](int) {
    const auto start = Clock::now();
    while (seconds_since(start) < kBarrierUnit) {
    }
  };
  auto body = [&](Spmd& spmd) {
    for (int p = 0; p < phases; ++p) spmd.for_units(spmd.threads(), unit);
  };
  pool.run(body);
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    const auto start = Clock::now();
    pool.run(body);
    times.push_back(seconds_since(start) / phases - kBarrierUnit);
  }
  return times;
}

std::vector<double> probe_wake(ProbeThreads threads, int samples) {
  ThreadPool pool(threads.threads, threads.usable_cpus);
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    std::this_thread::sleep_for(kFallAsleep);
    std::atomic<int> awake{0};
    double took = kWakeLimit;
    const auto start = Clock::now();
    auto body = [&](Spmd& spmd) {
      awake.fetch_add(1);
      if (spmd.thread() != 0) return;
      while (awake.load() < spmd.threads() && seconds_since(start) < kWakeLimit) {
        std::this_thread::yield();
      }
      took = std::min(kWakeLimit, seconds_since(start));
    };
    pool.run(body);
    times.push_back(took);
  }
  return times;
}

}  // namespace octavo
