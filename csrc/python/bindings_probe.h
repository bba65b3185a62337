#pragma once
#include <nanobind/nanobind.h>

namespace octavo::python {
void bind_probe(nanobind::module_& m);  // bindings_probe.cpp: what the machine can do at best
}  // namespace octavo::python
