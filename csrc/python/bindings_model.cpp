// NativeModel for Python. Every array of a step is bound once; a step is one call, without the GIL.
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bindings.h"
#include "native_model.h"

namespace octavo::python {
namespace {

ModelConfig config_from(const nb::dict& d) {
  auto number = [&](const char* key) { return nb::cast<int>(d[key]); };
  ModelConfig c;
  c.limits.max_tokens = number("max_tokens");
  c.limits.max_seqs = number("max_seqs");
  c.limits.max_rows = number("max_rows");
  c.limits.max_blocks = number("max_blocks_per_seq");
  c.limits.num_groups = number("num_kv_groups");
  c.limits.max_mask_rows = number("max_mask_rows");
  c.limits.max_sparse = number("max_sparse");
  c.limits.max_report_ids = number("max_report_ids");
  c.limits.max_position = number("max_position");
  c.limits.block_size = number("block_size");
  c.limits.num_blocks = number("num_blocks");
  c.limits.merge_shared_prefix = number("merge_shared_prefix") != 0;
  c.vocab = number("vocab_size");
  c.hidden = number("hidden_size");
  c.kv_dtype = static_cast<KVDtype>(number("kv_dtype"));
  c.num_threads = number("num_threads");
  c.usable_cpus = number("usable_cpus");
  c.weight_bytes = nb::cast<size_t>(d["weight_bytes"]);
  return c;
}

// Binds the arrays of a dict to the pointers of a step, checking type and size of each.
class Binder {
 public:
  explicit Binder(const nb::dict& arrays) : arrays_(arrays) {}

  template <class T>
  T* take(const char* name, size_t count) {
    using Plain = std::remove_const_t<T>;
    Array<Plain> array;
    if (!arrays_.contains(name) || !nb::try_cast(arrays_[name], array, false)) {
      throw std::invalid_argument(std::string(name) + ": not a contiguous array of its type");
    }
    if (array.size() < count) {
      throw std::invalid_argument(std::string(name) + ": holds " + std::to_string(array.size()) +
                                  " values, needs " + std::to_string(count));
    }
    return array.data();
  }

  template <class T>
  void bind(const char* name, size_t count, T** out) {
    *out = take<T>(name, count);
  }

 private:
  const nb::dict& arrays_;
};

void bind_sampling(Binder& b, const StepLimits& l, int vocab, SamplingInputs* s) {
  const size_t rows = l.max_rows;
  const size_t words = (static_cast<size_t>(vocab) + 31) / 32;
  b.bind("temperature", rows, &s->temperature);
  b.bind("top_k", rows, &s->top_k);
  b.bind("top_p", rows, &s->top_p);
  b.bind("min_p", rows, &s->min_p);
  b.bind("repetition_penalty", rows, &s->repetition_penalty);
  b.bind("presence_penalty", rows, &s->presence_penalty);
  b.bind("frequency_penalty", rows, &s->frequency_penalty);
  b.bind("seed", rows, &s->seed);
  b.bind("sample_index", rows, &s->sample_index);
  b.bind("position", rows, &s->position);
  b.bind("target_ids", rows, &s->target_ids);
  b.bind("num_logprobs", rows, &s->num_logprobs);
  b.bind("mask_index", rows, &s->mask_index);
  b.bind("masks", l.max_mask_rows * words, &s->masks);
  s->mask_words = static_cast<int32_t>(words);
  b.bind("penalty_start", rows + 1, &s->penalty_start);
  b.bind("penalty_ids", l.max_sparse, &s->penalty_ids);
  b.bind("penalty_counts", l.max_sparse, &s->penalty_counts);
  b.bind("bias_start", rows + 1, &s->bias_start);
  b.bind("bias_ids", l.max_sparse, &s->bias_ids);
  b.bind("bias_values", l.max_sparse, &s->bias_values);
  b.bind("report_start", rows + 1, &s->report_start);
  b.bind("report_ids", rows * l.max_report_ids, &s->report_ids);
}

// The caller keeps the arrays alive and in place while they are bound.
void bind_arrays(NativeModel& model, const nb::dict& arrays) {
  const StepLimits& l = model.config().limits;
  const size_t tokens = l.max_tokens, seqs = l.max_seqs, rows = l.max_rows;
  const int vocab = model.config().vocab;
  Binder b(arrays);
  StepArrays a = model.arrays();
  b.bind("token_ids", tokens, &a.token_ids);
  b.bind("positions", tokens, &a.positions);
  b.bind("query_start_loc", seqs + 1, &a.query_start_loc);
  b.bind("context_len", seqs, &a.context_len);
  b.bind("block_tables", l.num_groups * seqs * l.max_blocks, &a.block_tables);
  b.bind("slot_mapping", l.num_groups * tokens, &a.slot_mapping);
  b.bind("logits_indices", rows, &a.logits_indices);
  bind_sampling(b, l, vocab, &a.sampling);
  b.bind("out_sampled", rows, &a.out.sampled);
  b.bind("out_logprob", rows, &a.out.logprob);
  b.bind("out_rank", rows, &a.out.rank);
  model.arrays() = a;
}

// Where alternatives go: [rows, k] for the largest k of the step.
void bind_top(NativeModel& model, Array<int32_t, nb::ndim<2>> ids,
              Array<float, nb::ndim<2>> logprobs) {
  if (ids.shape(0) != logprobs.shape(0) || ids.shape(1) != logprobs.shape(1)) {
    throw std::invalid_argument("top ids and logprobs must have one shape");
  }
  StepArrays& a = model.arrays();
  a.out.top_ids = ids.data();
  a.out.top_logprobs = logprobs.data();
  a.out.top_stride = static_cast<int32_t>(ids.shape(1));
  a.top_rows = static_cast<int32_t>(ids.shape(0));
}

void bind_logits(NativeModel& model, Array<float> logits) {
  const size_t needed = static_cast<size_t>(model.config().limits.max_rows) * model.config().vocab;
  if (logits.size() < needed) throw std::invalid_argument("logits must be [max_rows, vocab]");
  model.arrays().logits = logits.data();
}

void step(NativeModel& model, int tokens, int seqs, int rows, bool want_logits) {
  StepCounts counts;
  counts.tokens = tokens;
  counts.seqs = seqs;
  counts.rows = rows;
  counts.want_logits = want_logits;
  nb::gil_scoped_release release;
  model.step(counts);
}

int add_matrix(NativeModel& model, int type, int rows, int k, int group_rows,
               Array<const uint8_t> source) {
  const auto quant = static_cast<QuantType>(type);
  if (type < 0 || type >= static_cast<int>(QuantType::kCount)) {
    throw std::invalid_argument("no such source type");
  }
  if (source.nbytes() != static_cast<size_t>(rows) * source_row_bytes(quant, k)) {
    throw std::invalid_argument("source does not hold rows x row bytes");
  }
  const uint8_t* data = source.data();
  nb::gil_scoped_release release;
  return model.add_matrix(quant, rows, k, group_rows, data);
}

int add_rope(NativeModel& model, Array<const float, nb::ndim<2>> cos,
             Array<const float, nb::ndim<2>> sin, bool interleaved) {
  if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1)) {
    throw std::invalid_argument("cos and sin must have one shape");
  }
  return model.add_rope(cos.data(), sin.data(), static_cast<int>(cos.shape(0)),
                        static_cast<int>(2 * cos.shape(1)), interleaved);
}

void bind_arguments(nb::module_& m) {
  nb::class_<NormArgs>(m, "Norm").def(
      "__init__",
      [](NormArgs* self, int weight, float eps, float add_one) {
        new (self) NormArgs{weight, eps, add_one};
      },
      nb::arg("weight") = -1, nb::arg("eps") = 0.0f, nb::arg("add_one") = 0.0f);
  nb::class_<ProjectionArgs>(m, "Projection")
      .def(
          "__init__",
          [](ProjectionArgs* self, int matrix, int bias) {
            new (self) ProjectionArgs{matrix, bias};
          },
          nb::arg("matrix"), nb::arg("bias") = -1);
}

}  // namespace

void bind_model(nb::module_& m) {
  bind_arguments(m);
  nb::class_<NativeModel>(m, "NativeModel")
      .def("__init__",
           [](NativeModel* self, const nb::dict& config, const std::string& isa) {
             new (self) NativeModel(config_from(config), isa);
           })
      .def("add_matrix", &add_matrix)
      .def("add_vector", [](NativeModel& model, Array<const float, nb::ndim<1>> values) {
        return model.add_vector(values.data(), static_cast<int>(values.size()));
      })
      .def("add_rope", &add_rope)
      .def("add_store", &NativeModel::add_store)
      .def("set_embed", &NativeModel::set_embed)
      .def("add_qkv", &NativeModel::add_qkv)
      .def("add_attention", &NativeModel::add_attention)
      .def("add_linear", &NativeModel::add_linear)
      .def("add_glu", &NativeModel::add_glu)
      .def("set_tail", &NativeModel::set_tail)
      .def("finish", &NativeModel::finish)
      .def("bind_arrays", &bind_arrays)
      .def("bind_top", &bind_top)
      .def("bind_logits", &bind_logits)
      .def("step", &step)
      .def("copy_block", &NativeModel::copy_block)
      .def_prop_ro("isa", &NativeModel::isa)
      .def_prop_ro("num_threads", &NativeModel::num_threads)
      .def_prop_ro("num_calls", &NativeModel::num_calls)
      .def_prop_ro("merged_rows", &NativeModel::merged_rows)
      .def_prop_ro("weight_bytes", &NativeModel::weight_bytes)
      .def_prop_ro("kv_bytes", &NativeModel::kv_bytes)
      .def_prop_ro("buffer_bytes", &NativeModel::buffer_bytes);
}

}  // namespace octavo::python
