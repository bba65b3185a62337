#include <nanobind/nanobind.h>
namespace nb = nanobind;
NB_MODULE(_native, m) { m.attr("__doc__") = "Octavo's native kernels and executor."; }
