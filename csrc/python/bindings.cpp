// The module's entry. Compiled for the baseline ISA, as everything that runs before the CPU check.
#include "bindings.h"
#include "bindings_probe.h"
#include "cpu_isa.h"
#include "kernel_bindings.h"

NB_MODULE(_native, m) {
  // A model still open when the interpreter ends is the system's to free, not a leak to report.
  nanobind::set_leak_warnings(false);
  m.attr("__doc__") = "Octavo's native kernels and executor.";
  if (!octavo::cpu_has_baseline()) {
    throw nanobind::import_error("this CPU lacks AVX2, FMA or F16C: the native backend cannot run");
  }
  m.def("has_avx512", &octavo::cpu_has_avx512, "AVX-512 F, BW, VL, DQ and VNNI can be used");
  m.def("has_avx512bf16", &octavo::cpu_has_avx512bf16, "has_avx512() and the BF16 instructions");
  m.def("has_neondot", &octavo::cpu_has_neondot, "AArch64 with the dot-product extension");
  octavo::python::bind_model(m);
  octavo::python::bind_linear(m);
  octavo::python::bind_probe(m);
  bind_kernels(m);
}
