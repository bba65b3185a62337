// Parts of the Python module, one file each. Array arguments arrive as contiguous CPU arrays.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace octavo::python {

namespace nb = nanobind;

template <class T, class... Extra>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu, Extra...>;

void bind_model(nb::module_& m);   // bindings_model.cpp: NativeModel
void bind_linear(nb::module_& m);  // bindings_linear.cpp: packing and products, for tests

}  // namespace octavo::python
