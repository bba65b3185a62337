// Quantization at load; packing, single products and the thread pool for the parity tests.
#include <nanobind/stl/string.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "arena.h"
#include "bindings.h"
#include "linear.h"
#include "native_model.h"
#include "quantize.h"
#include "thread_pool.h"

namespace octavo::python {
namespace {

const LinearKernels* linear_of(const std::string& isa) {
  const LinearKernels* table = nullptr;
  if (isa == "generic") table = linear_generic();
  if (isa == "avx2") table = linear_avx2();
  if (isa == "avx512") table = linear_avx512();
  if (isa == "avx512bf16") table = linear_avx512bf16();
  if (isa == "neon") table = linear_neon();
  if (isa == "neondot") table = linear_neondot();
  if (!table) throw std::invalid_argument("this CPU or build has no " + isa);
  return table;
}

// A matrix with its own memory.
struct TestMatrix {
  Arena arena;
  PackedMatrix matrix;

  TestMatrix(int type, int rows, int k, int group_rows, Array<const uint8_t> source) {
    const auto quant = static_cast<QuantType>(type);
    const size_t bytes = arena_bytes(quant, rows, k, group_rows);
    if (source.nbytes() != rows * source_row_bytes(quant, k)) {
      throw std::invalid_argument("source does not hold rows x row bytes");
    }
    matrix = packed_shape(quant, rows, k, group_rows);
    arena = Arena(bytes);
    uint8_t* data = arena.allocate(bytes);
    pack_matrix(matrix, quant, source.data(), data);
    matrix.data = data;
  }
};

void unpack_rows(const TestMatrix& m, Array<float, nb::ndim<2>> out) {
  if (out.shape(0) != static_cast<size_t>(m.matrix.rows) ||
      out.shape(1) != static_cast<size_t>(m.matrix.k)) {
    throw std::invalid_argument("out must be [rows, k]");
  }
  for (int r = 0; r < m.matrix.rows; ++r) {
    unpack_row(m.matrix, r, out.data() + static_cast<size_t>(r) * m.matrix.k);
  }
}

// out[M][panels * 16] from float rows, converted as the matrix wants them.
void product(const TestMatrix& m, const std::string& isa, Array<const float, nb::ndim<2>> x,
             Array<float, nb::ndim<2>> out) {
  const int rows = static_cast<int>(x.shape(0));
  const int width = m.matrix.panels * kLanes;
  if (x.shape(1) != static_cast<size_t>(m.matrix.k) || out.shape(0) != x.shape(0) ||
      out.shape(1) != static_cast<size_t>(width)) {
    throw std::invalid_argument("shapes of x and out do not fit the matrix");
  }
  ActSet set;
  set.k = m.matrix.k;
  set.want(m.matrix.act_kind());
  Arena arena(set.bytes(rows));
  set.place(arena, rows);
  ActRows& acts = set.of(m.matrix.act_kind());
  kernels_generic()->norm_rows(x.data(), m.matrix.k, rows, m.matrix.k, nullptr, 0, 0, &acts, 0);
  linear_of(isa)->tile(m.matrix, 0, m.matrix.panels, acts, 0, rows, out.data(), width);
}

// Runs `phases` phases of `units` units; returns how often each unit of each phase ran.
void pool_walk(int threads, int usable_cpus, int phases, int runs, Array<int32_t, nb::ndim<2>> hits) {
  const int units = static_cast<int>(hits.shape(1));
  int32_t* data = hits.data();
  ThreadPool pool(threads, usable_cpus);
  auto body = [&](Spmd& spmd) {
    for (int p = 0; p < phases; ++p) {
      auto unit = [&](int u) {
        // A unit runs once, so this is the only writer; the phase before must be complete.
        int32_t* cell = data + static_cast<size_t>(p) * units + u;
        const bool complete = p == 0 || cell[-units] == cell[0] + 1;
        cell[0] += complete ? 1 : 1000000;
      };
      if (p % 2) {
        spmd.for_ordered_units(units, unit);
      } else {
        spmd.for_units(units, unit);
      }
    }
  };
  nb::gil_scoped_release release;
  for (int i = 0; i < runs; ++i) pool.run(body);
}

// A thread may come too late for the run, so what counts is that all that entered were refused.
bool pool_refuses_nesting(int threads) {
  ThreadPool pool(threads, threads);
  std::atomic<int> entered{0};
  std::atomic<int> refused{0};
  auto inner = [](Spmd&) {};
  auto body = [&](Spmd&) {
    entered.fetch_add(1);
    try {
      pool.run(inner);
    } catch (const std::logic_error&) {
      refused.fetch_add(1);
    }
  };
  nb::gil_scoped_release release;
  pool.run(body);
  return entered.load() > 0 && refused.load() == entered.load();
}

// Blocks of `to` into out; the largest magnitude of the source, or what is not finite in it.
float quantize(int from, int to, Array<const uint8_t, nb::ndim<2>> source, int columns,
               Array<uint8_t, nb::ndim<2>> out) {
  const auto read = static_cast<QuantType>(from), made = static_cast<QuantType>(to);
  if (!can_quantize(read, made)) throw std::invalid_argument("no such pair of types");
  const size_t bytes = columns > 0 ? source_row_bytes(made, columns) : 0;
  if (bytes == 0 || source.shape(1) != source_row_bytes(read, columns) ||
      out.shape(1) != bytes || out.shape(0) != source.shape(0)) {
    throw std::invalid_argument("shapes of source and out do not fit the types and columns");
  }
  nb::gil_scoped_release release;
  return quantize_rows(read, made, source.data(), source.shape(0), columns, out.data());
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<TestMatrix>(m, "TestMatrix")
      .def(nb::init<int, int, int, int, Array<const uint8_t>>())
      .def("unpack_rows", &unpack_rows)
      .def("product", &product)
      .def_prop_ro("panels", [](const TestMatrix& t) { return t.matrix.panels; });
  m.def("arena_bytes", [](int type, int rows, int k, int group_rows) {
    return arena_bytes(static_cast<QuantType>(type), rows, k, group_rows);
  });
  m.def("quantize", &quantize);
  m.def("pool_walk", &pool_walk);
  m.def("pool_refuses_nesting", &pool_refuses_nesting);
}

}  // namespace octavo::python
