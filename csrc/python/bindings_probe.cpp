// The machine probe for Python: lists of samples, without the GIL.
#include "bindings_probe.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "probe.h"

namespace octavo::python {
namespace {

namespace nb = nanobind;

const ProbeTable& table_of(const std::string& isa) {
  for (const ProbeTable* table : probe_tables()) {
    if (isa == table->isa) return *table;
  }
  throw std::invalid_argument("this CPU or build has no " + isa);
}

void check(int threads, int samples) {
  if (threads < 1 || samples < 1) throw std::invalid_argument("give at least one thread and sample");
}

// What each table can measure: [(isa, ["int8", ...]), ...], least capable first.
nb::list forms() {
  nb::list found;
  for (const ProbeTable* table : probe_tables()) {
    nb::list kinds;
    for (const char* kind : {"int8", "bf16", "f32"}) {
      if (probe_form(*table, kind).run) kinds.append(kind);
    }
    if (table->read) kinds.append("read");
    found.append(nb::make_tuple(table->isa, kinds));
  }
  return found;
}

std::vector<double> dot(const std::string& isa, const std::string& kind, int threads,
                        int usable_cpus, int samples, double milliseconds) {
  check(threads, samples);
  const DotForm& form = probe_form(table_of(isa), kind);
  if (!form.run) throw std::invalid_argument(isa + " has no " + kind + " form");
  nb::gil_scoped_release release;
  return probe_dot(form, {threads, usable_cpus}, samples, milliseconds);
}

std::vector<double> read(const std::string& isa, size_t footprint, int threads, int usable_cpus,
                         int samples, double milliseconds) {
  check(threads, samples);
  const ReadProbe run = table_of(isa).read;
  if (!run) throw std::invalid_argument(isa + " has no read form");
  nb::gil_scoped_release release;
  return probe_read(run, footprint, {threads, usable_cpus}, samples, milliseconds);
}

std::vector<double> barrier(int threads, int usable_cpus, int samples, int phases) {
  check(threads, samples);
  if (phases < 1) throw std::invalid_argument("give at least one phase");
  nb::gil_scoped_release release;
  return probe_barrier({threads, usable_cpus}, samples, phases);
}

std::vector<double> wake(int threads, int usable_cpus, int samples) {
  check(threads, samples);
  nb::gil_scoped_release release;
  return probe_wake({threads, usable_cpus}, samples);
}

}  // namespace

void bind_probe(nb::module_& m) {
  m.def("probe_forms", &forms);
  m.def("probe_dot", &dot, nb::arg("isa"), nb::arg("kind"), nb::arg("threads"),
        nb::arg("usable_cpus"), nb::arg("samples"), nb::arg("milliseconds"));
  m.def("probe_read", &read, nb::arg("isa"), nb::arg("footprint"), nb::arg("threads"),
        nb::arg("usable_cpus"), nb::arg("samples"), nb::arg("milliseconds"));
  m.def("probe_barrier", &barrier, nb::arg("threads"), nb::arg("usable_cpus"), nb::arg("samples"),
        nb::arg("phases"));
  m.def("probe_wake", &wake, nb::arg("threads"), nb::arg("usable_cpus"), nb::arg("samples"));
}

}  // namespace octavo::python
