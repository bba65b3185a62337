// Single kernels for Python: tests and the kernel bench only; steps go through the executor.
#pragma once
#include <nanobind/nanobind.h>

void bind_kernels(nanobind::module_& module);
