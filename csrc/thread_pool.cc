#include "thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <unistd.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

// How long a waiting thread polls before it sleeps. A phase of a small model takes 5 to 30 us and a
// kernel wake-up 5 to 50 us, so polling over a phase's imbalance is worth it; longer only steals
// time from the server's threads.
constexpr int kSpinMicroseconds = 60;
// Polls between two looks at the clock (a look costs about as much as one poll).
constexpr int kPollsPerLook = 32;
// Yields before sleeping: the thread waited for may be ready on this very CPU.
constexpr int kYields = 2;

thread_local bool inside_run = false;

inline void cpu_relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void sleep_while_equal(std::atomic<uint32_t>* word, uint32_t old) {
#ifdef __linux__
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, old, nullptr, nullptr,
          0);
#else
  if (word->load() == old) std::this_thread::sleep_for(std::chrono::microseconds(100));
#endif
}

void wake_all(std::atomic<uint32_t>* word) {
#ifdef __linux__
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr,
          nullptr, 0);
#else
  (void)word;
#endif
}

// gate_: run number in the high 32 bits, phase in 20, registered threads in 12.
constexpr int kPhaseShift = 12;
constexpr int kRunShift = 32;
constexpr uint64_t kActiveMask = (uint64_t{1} << kPhaseShift) - 1;
constexpr uint64_t kPhaseMask = (uint64_t{1} << (kRunShift - kPhaseShift)) - 1;
constexpr int kMaxThreads = 1024;

constexpr uint64_t gate_word(uint32_t run, int phase, int active) {
  return (static_cast<uint64_t>(run) << kRunShift) |
         (static_cast<uint64_t>(phase) << kPhaseShift) | static_cast<uint64_t>(active);
}
constexpr uint32_t run_of(uint64_t gate) { return static_cast<uint32_t>(gate >> kRunShift); }
constexpr int phase_of(uint64_t gate) {
  return static_cast<int>((gate >> kPhaseShift) & kPhaseMask);
}
constexpr int active_of(uint64_t gate) { return static_cast<int>(gate & kActiveMask); }

int clamp_threads(int threads) {
  return threads < 1 ? 1 : (threads > kMaxThreads ? kMaxThreads : threads);
}

}  // namespace

int Spmd::threads() const { return pool_->size_; }

int Spmd::take(int owner) {
  ThreadPool::Counter& counter = pool_->counters_[(phase_ & 1) * pool_->size_ + owner];
  return counter.next.fetch_add(1, std::memory_order_relaxed);
}

bool Spmd::begin() {
  if (!behind()) return true;
  ++phase_;
  return false;
}

void Spmd::finish() {
  joined_ = pool_->finish_phase(run_, phase_);
  ++phase_;
}

ThreadPool::ThreadPool(int threads, int usable_cpus)
    : size_(clamp_threads(threads)),
      spin_us_(threads > usable_cpus ? 0 : kSpinMicroseconds),
      owner_pid_(getpid()),
      gate_(gate_word(1, 0, 0)),
      counters_(new Counter[2 * static_cast<size_t>(clamp_threads(threads))]) {
  start();
}

ThreadPool::~ThreadPool() {
  if (getpid() == owner_pid_) {
    stop();
  } else {
    for (std::thread& thread : threads_) thread.detach();  // they live in the parent only
  }
}

void ThreadPool::start() {
  for (int t = 1; t < size_; ++t) threads_.emplace_back([this, t] { worker(t); });
}

void ThreadPool::stop() {
  stopping_ = true;
  announce(job_, job_.value.load() + 1);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::run(Function function, void* context) {
  if (inside_run) throw std::logic_error("ThreadPool::run called from inside a running function");
  std::lock_guard<std::mutex> lock(run_mutex_);
  if (getpid() != owner_pid_) {
    // After a fork only the forking thread exists here: start anew.
    for (std::thread& thread : threads_) thread.detach();
    threads_.clear();
    owner_pid_ = getpid();
    job_.sleepers.store(0);
    epoch_.sleepers.store(0);
    job_.value.store(0);
    gate_.store(gate_word(1, 0, 0));
    start();
  }
  function_ = function;
  context_ = context;
  reset_counters(0);
  const uint32_t run = job_.value.load(std::memory_order_relaxed) + 2;
  gate_.store(gate_word(run, 0, 1), std::memory_order_release);
  announce(job_, run);
  inside_run = true;
  Spmd spmd(this, 0, run, 0);
  function(context, spmd);
  close(run);
  inside_run = false;
}

void ThreadPool::worker(int thread) {
  inside_run = true;
  uint32_t seen = 0;
  for (;;) {
    wait_change(job_, seen);
    if (stopping_) return;
    seen = job_.value.load(std::memory_order_acquire);
    try {
      Spmd spmd(this, thread, seen, join(seen));
      function_(context_, spmd);
      leave();
    } catch (const RunIsOver&) {
      // The others did the rest while this thread was not running.
    }
  }
}

// Registers this thread and returns the phase the run is in. While any thread is registered the
// phase cannot end.
int ThreadPool::join(uint32_t run) {
  uint64_t gate = gate_.load(std::memory_order_acquire);
  do {
    if (run_of(gate) != run) throw RunIsOver();
  } while (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire));
  return phase_of(gate);
}

// Called with every unit of the phase taken: whoever leaves last has seen all of them done and opens
// the next phase, staying registered. The others wait unregistered.
int ThreadPool::finish_phase(uint32_t run, int phase) {
  const uint32_t epoch = epoch_.value.load(std::memory_order_acquire);
  uint64_t gate = gate_.load(std::memory_order_acquire);
  for (;;) {
    const bool last = active_of(gate) == 1;
    // Nobody has used the other set since the phase before this one, and nobody can before this
    // thread leaves.
    if (last) reset_counters(phase + 1);
    const uint64_t next = last ? gate_word(run, phase + 1, 1) : gate - 1;
    if (gate_.compare_exchange_weak(gate, next, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      if (!last) break;
      announce(epoch_, epoch + 1);
      return phase + 1;
    }
  }
  wait_change(epoch_, epoch);
  return join(run);
}

// Only thread 0 ends a run. Threads that are still registered are on their way out.
void ThreadPool::close(uint32_t run) {
  for (int polls = 0;; ++polls) {
    uint64_t gate = gate_.load(std::memory_order_acquire);
    if (active_of(gate) == 1 &&
        gate_.compare_exchange_strong(gate, gate_word(run + 1, 0, 0), std::memory_order_acq_rel)) {
      return;
    }
    if (polls < kPollsPerLook) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::reset_counters(int phase) {
  Counter* set = &counters_[(phase & 1) * size_];
  for (int t = 0; t < size_; ++t) set[t].next.store(0, std::memory_order_relaxed);
}

// Sequentially consistent on both sides: either the announcer sees the sleeper, or the sleeper sees
// the new value.
void ThreadPool::announce(Word& word, uint32_t value) {
  word.value.store(value, std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_seq_cst) > 0) wake_all(&word.value);
}

void ThreadPool::wait_change(Word& word, uint32_t old) {
  using Clock = std::chrono::steady_clock;
  if (word.value.load(std::memory_order_acquire) != old) return;
  if (spin_us_ > 0) {
    const auto deadline = Clock::now() + std::chrono::microseconds(spin_us_);
    do {
      for (int i = 0; i < kPollsPerLook; ++i) {
        cpu_relax();
        if (word.value.load(std::memory_order_acquire) != old) return;
      }
    } while (Clock::now() < deadline);
  }
  for (int i = 0; i < kYields; ++i) {
    std::this_thread::yield();
    if (word.value.load(std::memory_order_acquire) != old) return;
  }
  word.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (word.value.load(std::memory_order_seq_cst) == old) sleep_while_equal(&word.value, old);
  word.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace octavo
