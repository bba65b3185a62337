// What the machine can do at best: dot products a second, bytes read a second, thread latencies.
//
// Measures the hardware with the instructions and the thread pool the kernels use; touches no model
// and no kernel. Times are wall-clock seconds of one sample each; the caller does the statistics.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "probe_kernels.h"

namespace octavo {

// The tables this CPU can run, least capable first.
std::vector<const ProbeTable*> probe_tables();
// The form of a table by name: "int8", "bf16" or "f32". Throws std::invalid_argument.
const DotForm& probe_form(const ProbeTable& table, const std::string& kind);

struct ProbeThreads {
  int threads;
  int usable_cpus;
};

// Multiply-accumulates a second, one value a sample of about `milliseconds`.
std::vector<double> probe_dot(const DotForm& form, ProbeThreads threads, int samples,
                              double milliseconds);
// Bytes a second at this footprint. Each thread reads its own contiguous share again and again, in
// units that others may take over, as matrix rows are.
std::vector<double> probe_read(ReadProbe read, size_t footprint, ProbeThreads threads, int samples,
                               double milliseconds);
// Seconds between two phases: what a phase of one 5 us unit a thread takes beyond those 5 us.
std::vector<double> probe_barrier(ProbeThreads threads, int samples, int phases);
// Seconds from a call of the pool whose threads sleep until all of them run. A sample in which one
// did not come within 50 ms counts as 50 ms.
std::vector<double> probe_wake(ProbeThreads threads, int samples);

}  // namespace octavo
