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

}  // namespace

int Spmd::threads() const { return pool_->size_; }

int Spmd::take(int owner) {
  ThreadPool::Counter& counter = pool_->counters_[(phase_ & 1) * pool_->size_ + owner];
  return counter.next.fetch_add(1, std::memory_order_relaxed);
}

void Spmd::sync() {
  pool_->barrier(phase_);
  ++phase_;
}

ThreadPool::ThreadPool(int threads, int usable_cpus)
    : size_(threads < 1 ? 1 : threads),
      spin_us_(threads > usable_cpus ? 0 : kSpinMicroseconds),
      owner_pid_(getpid()),
      counters_(new Counter[2 * static_cast<size_t>(threads < 1 ? 1 : threads)]) {
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
    arrived_.store(0);
    job_.sleepers.store(0);
    epoch_.sleepers.store(0);
    job_.value.store(0);
    start();
  }
  function_ = function;
  context_ = context;
  for (int i = 0; i < 2 * size_; ++i) counters_[i].next.store(0, std::memory_order_relaxed);
  if (size_ > 1) announce(job_, job_.value.load(std::memory_order_relaxed) + 1);
  inside_run = true;
  Spmd spmd(this, 0);
  function(context, spmd);
  spmd.sync();
  inside_run = false;
}

void ThreadPool::worker(int thread) {
  inside_run = true;
  for (uint32_t seen = 0;; ++seen) {
    wait_change(job_, seen);
    if (stopping_) return;
    Spmd spmd(this, thread);
    function_(context_, spmd);
    spmd.sync();
  }
}

// The last thread to arrive resets the counters of the set the next phase uses (it was last used in
// the phase before this one, which every thread has left) and lets all go on.
void ThreadPool::barrier(int phase) {
  const uint32_t epoch = epoch_.value.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    wait_change(epoch_, epoch);
    return;
  }
  Counter* next = &counters_[((phase + 1) & 1) * size_];
  for (int t = 0; t < size_; ++t) next[t].next.store(0, std::memory_order_relaxed);
  arrived_.store(0, std::memory_order_relaxed);
  announce(epoch_, epoch + 1);
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
