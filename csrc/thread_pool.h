// A persistent pool that runs one function on every thread (SPMD) with barriers inside it.
//
// The caller is thread 0. Waiting spins for tens of microseconds, then sleeps in the kernel, so an
// idle pool uses no CPU; with more threads than CPUs it does not spin at all. Work is cut into
// units; each thread owns a contiguous range and steals from the others when its own is done, so a
// descheduled thread delays at most one unit. No result may depend on who ran a unit.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

class ThreadPool;

// One thread's view of a running SPMD function.
class Spmd {
 public:
  Spmd(ThreadPool* pool, int thread) : pool_(pool), thread_(thread) {}
  int thread() const { return thread_; }
  int threads() const;

  // Runs fn(unit) for units of [0, total) that this thread takes: its own range, then stolen ones.
  // At most one unit loop between two syncs.
  template <class F>
  void for_units(int total, F&& fn) {
    const int n = threads();
    for (int i = 0; i < n; ++i) {
      const int owner = thread_ + i < n ? thread_ + i : thread_ + i - n;
      const int first = range_start(total, owner, n);
      const int count = range_start(total, owner + 1, n) - first;
      for (int at = take(owner); at < count; at = take(owner)) fn(first + at);
    }
  }

  // The same with one shared counter, units handed out in order: for units of very different cost
  // that come sorted, longest first.
  template <class F>
  void for_ordered_units(int total, F&& fn) {
    for (int at = take(0); at < total; at = take(0)) fn(at);
  }

  // All threads have finished their units, and see what the others wrote.
  void sync();

 private:
  static int range_start(int total, int thread, int n) {
    return static_cast<int>(static_cast<int64_t>(total) * thread / n);
  }
  int take(int owner);

  ThreadPool* pool_;
  int thread_;
  int phase_ = 0;  // parity chooses the counter set; all threads agree
};

class ThreadPool {
 public:
  using Function = void (*)(void* context, Spmd& spmd);

  // usable_cpus: how many CPUs this process may really run on at once.
  ThreadPool(int threads, int usable_cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }
  // Runs function(context, spmd) on every thread and returns when all are done. The function must
  // not throw. Callers queue; a call from inside a running function throws std::logic_error.
  void run(Function function, void* context);

  template <class F>
  void run(F& function) {
    run([](void* context, Spmd& spmd) { (*static_cast<F*>(context))(spmd); }, &function);
  }

 private:
  friend class Spmd;
  struct alignas(64) Word {
    std::atomic<uint32_t> value{0};
    std::atomic<int32_t> sleepers{0};
  };
  struct alignas(64) Counter {
    std::atomic<int32_t> next{0};
  };

  void start();
  void stop();
  void worker(int thread);
  void barrier(int phase);
  void wait_change(Word& word, uint32_t old);
  static void announce(Word& word, uint32_t value);

  const int size_;
  const int spin_us_;
  pid_t owner_pid_;
  std::mutex run_mutex_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
  Function function_ = nullptr;
  void* context_ = nullptr;
  Word job_;
  Word epoch_;
  alignas(64) std::atomic<int32_t> arrived_{0};
  std::unique_ptr<Counter[]> counters_;  // [2 sets][size_]
};

}  // namespace octavo
