// A persistent pool that runs one function on every thread (SPMD), in phases.
//
// The caller is thread 0. A phase is a set of units; it is over when all its units are done, not when
// all threads have arrived: a thread that the system has descheduled holds up the others only while
// it holds a unit. It joins the current phase when it runs again, or drops out of the run if the
// run is over. So a busy machine, or more threads than CPUs, costs about the lost CPU time and no
// more. Waiting spins for tens of microseconds, then sleeps in the kernel: an idle pool uses no CPU.
//
// Each thread owns a contiguous range of units and steals from the others when its own is done. No
// result may depend on who ran a unit.
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

// One thread's view of a running SPMD function. All threads must go through the same phases.
class Spmd {
 public:
  int thread() const { return thread_; }
  int threads() const;

  // The next phase is over already: preparing for its units would be in vain, and might read what
  // later phases are writing.
  bool behind() const { return phase_ < joined_; }

  // One phase: runs fn(unit) for the units of [0, total) that this thread gets hold of, its own
  // range first, and returns when all units are done. Everything they wrote is visible then.
  template <class F>
  void for_units(int total, F&& fn) {
    if (!begin()) return;
    const int n = threads();
    for (int i = 0; i < n; ++i) {
      const int owner = thread_ + i < n ? thread_ + i : thread_ + i - n;
      const int first = range_start(total, owner, n);
      const int count = range_start(total, owner + 1, n) - first;
      for (int at = take(owner); at < count; at = take(owner)) fn(first + at);
    }
    finish();
  }

  // The same with units handed out in order: for units of very different cost, longest first.
  template <class F>
  void for_ordered_units(int total, F&& fn) {
    if (!begin()) return;
    for (int at = take(0); at < total; at = take(0)) fn(at);
    finish();
  }

 private:
  friend class ThreadPool;
  Spmd(ThreadPool* pool, int thread, uint32_t run, int joined)
      : pool_(pool), thread_(thread), run_(run), joined_(joined) {}

  static int range_start(int total, int thread, int n) {
    return static_cast<int>(static_cast<int64_t>(total) * thread / n);
  }
  bool begin();
  void finish();
  int take(int owner);

  ThreadPool* pool_;
  int thread_;
  uint32_t run_;
  int phase_ = 0;  // the phase this thread's code has come to
  int joined_;     // the phase the pool is in; it cannot go on while this thread is registered
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
  // Runs function(context, spmd) on the threads and returns when all its phases are over; nobody
  // touches context afterwards. The function must not throw. Callers queue; a call from inside a
  // running function throws std::logic_error. After a fork the child starts its own threads at its
  // first run (a fork while another thread is inside run() is not supported).
  void run(Function function, void* context);

  template <class F>
  void run(F& function) {
    run([](void* context, Spmd& spmd) { (*static_cast<F*>(context))(spmd); }, &function);
  }

 private:
  friend class Spmd;
  // Thrown to leave a run that is over; user code cannot return early by itself.
  struct RunIsOver {};
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
  int join(uint32_t run);
  void leave() { gate_.fetch_sub(1, std::memory_order_acq_rel); }
  void close(uint32_t run);
  int finish_phase(uint32_t run, int phase);
  void reset_counters(int phase);
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
  Word job_;    // the number of the latest run
  Word epoch_;  // counts phases, for sleeping on
  // (run number, phase, registered threads). A registered thread runs user code; a waiting one is
  // not registered. Odd run numbers: no run is open.
  alignas(64) std::atomic<uint64_t> gate_{0};
  std::unique_ptr<Counter[]> counters_;  // [2 sets][size_]: phase parity chooses the set
};

}  // namespace octavo
