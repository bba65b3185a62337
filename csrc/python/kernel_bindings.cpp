// Single kernels for Python, by ISA name. Callers pass the output arrays; shapes are checked here, as
// the kernels trust them.
#include "kernel_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>

#include "octavo/kernels.h"
#include "shared_splits.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using octavo::ActKind;
using octavo::ActRows;
using octavo::AttentionArgs;
using octavo::Kernels;
using octavo::KVDtype;
using octavo::KVLayout;

template <typename T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

const Kernels& table_of(const std::string& isa) {
  const Kernels* table = nullptr;
  if (isa == "generic") table = octavo::kernels_generic();
  if (isa == "avx2") table = octavo::kernels_avx2();
  if (isa == "avx512") table = octavo::kernels_avx512();
  if (isa == "neon") table = octavo::kernels_neon();
  if (table == nullptr) throw std::invalid_argument("no kernels for ISA " + isa);
  return *table;
}

std::vector<std::string> kernel_isas() {
  std::vector<std::string> names{"generic"};
  if (octavo::kernels_avx2() != nullptr) names.emplace_back("avx2");
  if (octavo::kernels_avx512() != nullptr) names.emplace_back("avx512");
  if (octavo::kernels_neon() != nullptr) names.emplace_back("neon");
  return names;
}

KVDtype kv_dtype_of(const std::string& name) {
  if (name == "f32") return KVDtype::kF32;
  if (name == "bf16") return KVDtype::kBF16;
  if (name == "int8") return KVDtype::kI8;
  throw std::invalid_argument("no KV dtype " + name);
}

// ActRows over the caller's arrays: `values` is [m, k] float32, bfloat16 bits (uint16) or int8.
struct ActTarget {
  ActRows rows{};

  ActTarget(const nb::object& values, const nb::object& scale, const nb::object& isum,
            const nb::object& fsum, const nb::object& isum_low, size_t m, size_t k) {
    rows.k = static_cast<int32_t>(k);
    Array<float, 2> f32;
    Array<uint16_t, 2> bf16;
    Array<int8_t, 2> i8;
    if (nb::try_cast(values, f32, false)) {
      check(f32.shape(0), f32.shape(1), m, k);
      rows.kind = ActKind::kF32;
      rows.f32 = f32.data();
    } else if (nb::try_cast(values, bf16, false)) {
      check(bf16.shape(0), bf16.shape(1), m, k);
      rows.kind = ActKind::kBF16;
      rows.bf16 = bf16.data();
    } else {
      i8 = nb::cast<Array<int8_t, 2>>(values);
      check(i8.shape(0), i8.shape(1), m, k);
      require(k % octavo::kQuantGroup == 0, "int8 rows need a multiple of 32 columns");
      rows.kind = ActKind::kI8;
      rows.q = i8.data();
      rows.scale = group_array<float>(scale, m, k);
      rows.isum = group_array<int32_t>(isum, m, k);
      rows.fsum = group_array<float>(fsum, m, k);
      rows.isum_low = group_array<int32_t>(isum_low, m, k);
    }
  }

 private:
  static void check(size_t rows, size_t columns, size_t m, size_t k) {
    require(rows == m && columns == k, "output shape differs from the input's");
  }

  template <typename T>
  static T* group_array(const nb::object& object, size_t m, size_t k) {
    auto array = nb::cast<Array<T, 2>>(object);
    check(array.shape(0), array.shape(1), m, k / octavo::kQuantGroup);
    return array.data();
  }
};

void norm_rows(const std::string& isa, Array<const float, 2> x, const nb::object& weight,
               float add_one, float eps, nb::object values, nb::object scale, nb::object isum,
               nb::object fsum, nb::object isum_low) {
  const size_t m = x.shape(0), k = x.shape(1);
  ActTarget target(values, scale, isum, fsum, isum_low, m, k);
  const float* w = nullptr;
  if (!weight.is_none()) {
    auto array = nb::cast<Array<const float, 1>>(weight);
    require(array.shape(0) == k, "weight needs one value a column");
    w = array.data();
  }
  table_of(isa).norm_rows(x.data(), static_cast<int64_t>(k), static_cast<int>(m),
                          static_cast<int>(k), w, add_one, eps, &target.rows, 0);
}

void silu_mul(const std::string& isa, Array<const float, 2> gate, Array<const float, 2> up,
              nb::object values, nb::object scale, nb::object isum, nb::object fsum,
              nb::object isum_low) {
  const size_t m = gate.shape(0), n = gate.shape(1);
  require(up.shape(0) == m && up.shape(1) == n, "gate and up differ in shape");
  ActTarget target(values, scale, isum, fsum, isum_low, m, n);
  table_of(isa).silu_mul(gate.data(), up.data(), static_cast<int64_t>(n), static_cast<int>(m),
                         static_cast<int>(n), &target.rows, 0, 0);
}

void head_norm(const std::string& isa, Array<float, 2> x, Array<const float, 1> weight,
               float add_one, float eps) {
  require(weight.shape(0) == x.shape(1), "weight needs one value a column");
  for (size_t row = 0; row < x.shape(0); ++row) {
    table_of(isa).head_norm(x.data() + row * x.shape(1), static_cast<int>(x.shape(1)),
                            weight.data(), add_one, eps);
  }
}

void rope(const std::string& isa, Array<float, 2> x, Array<const float, 2> cos,
          Array<const float, 2> sin, bool interleaved, Array<const int32_t, 1> positions) {
  const size_t half = cos.shape(1);
  require(sin.shape(0) == cos.shape(0) && sin.shape(1) == half, "cos and sin differ in shape");
  require(2 * half <= x.shape(1) && positions.shape(0) == x.shape(0), "x has the wrong shape");
  const octavo::RopeTable table{cos.data(), sin.data(), static_cast<int32_t>(2 * half),
                                interleaved};
  for (size_t row = 0; row < x.shape(0); ++row) {
    const int32_t position = positions.data()[row];
    require(position >= 0 && static_cast<size_t>(position) < cos.shape(0), "position out of table");
    table_of(isa).rope(x.data() + row * x.shape(1), &table, position);
  }
}

// One layer's KV cache as bytes.
struct KVCache {
  KVLayout layout;
  int num_blocks;
  std::vector<uint8_t> bytes;

  KVCache(const std::string& dtype, int num_kv_heads, int head_dim, int block_size, int blocks)
      : num_blocks(blocks) {
    require(num_kv_heads > 0 && blocks > 0, "sizes must be positive");
    require(head_dim > 0 && head_dim % 4 == 0, "head_dim must be a multiple of 4");
    require(block_size > 0 && block_size % 16 == 0, "block_size must be a multiple of 16");
    layout = octavo::make_kv_layout(kv_dtype_of(dtype), num_kv_heads, head_dim, block_size);
    bytes.assign(layout.block_stride * static_cast<size_t>(blocks), 0xff);  // NaN everywhere
  }

  void write(const std::string& isa, Array<const int64_t, 1> slots, Array<const float, 3> k,
             Array<const float, 3> v) {
    const size_t heads = static_cast<size_t>(layout.num_kv_heads);
    const size_t dim = static_cast<size_t>(layout.head_dim);
    const size_t tokens = slots.shape(0);
    require(k.shape(0) == tokens && k.shape(1) == heads && k.shape(2) == dim, "k has a wrong shape");
    require(v.shape(0) == tokens && v.shape(1) == heads && v.shape(2) == dim, "v has a wrong shape");
    for (size_t t = 0; t < tokens; ++t) {
      const int64_t slot = slots.data()[t];
      require(slot >= 0 && slot / layout.block_size < num_blocks, "slot outside the cache");
      for (size_t h = 0; h < heads; ++h) {
        const size_t offset = (t * heads + h) * dim;
        table_of(isa).kv_write(&layout, bytes.data(), slot, static_cast<int>(h), k.data() + offset,
                               v.data() + offset);
      }
    }
  }

  void check_queries(const Array<const float, 3>& q, const Array<float, 3>& out) const {
    require(q.shape(2) == static_cast<size_t>(layout.head_dim) &&
                q.shape(1) % static_cast<size_t>(layout.num_kv_heads) == 0,
            "q has a wrong shape");
    require(out.shape(0) == q.shape(0) && out.shape(1) == q.shape(1) &&
                out.shape(2) == q.shape(2),
            "out differs from q in shape");
  }

  // q, out: [rows, heads, head_dim], heads = num_kv_heads * group. part_splits > 0: in parts of so
  // many splits, the last part first, then merged. Returns the seconds of one run.
  double attend(const std::string& isa, Array<const float, 3> q, Array<const int32_t, 1> block_table,
                int first_position, float scale, float softcap, int window, Array<float, 3> out,
                int repeats, int part_splits) {
    check_queries(q, out);
    const size_t rows = q.shape(0), heads = q.shape(1);
    const size_t kv_heads = static_cast<size_t>(layout.num_kv_heads);
    const size_t end = static_cast<size_t>(first_position) + rows;
    require(first_position >= 0 && end <= block_table.shape(0) * layout.block_size,
            "block_table is too short");
    for (size_t i = 0; i < block_table.shape(0); ++i) {
      const int32_t block = block_table.data()[i];
      require(block >= 0 && block < num_blocks, "block_table names a block outside the cache");
    }
    AttentionArgs args{};
    args.layout = &layout;
    args.kv = bytes.data();
    args.block_table = block_table.data();
    args.group = static_cast<int32_t>(heads / kv_heads);
    args.rows = static_cast<int32_t>(rows);
    args.first_position = first_position;
    args.window = window;
    args.scale = scale;
    args.softcap = softcap;
    args.q_stride = args.out_stride = static_cast<int64_t>(heads) * layout.head_dim;
    std::vector<float> scratch(
        octavo::attention_scratch_floats(args.rows, args.group, layout.head_dim));
    args.scratch = scratch.data();
    const int seen_from = window > 0 ? std::max(0, first_position + 1 - window) : 0;
    const int first_split = seen_from / octavo::kSplit;
    const int end_split = static_cast<int>((end - 1) / octavo::kSplit) + 1;
    const size_t partial_rows = static_cast<size_t>(end_split - first_split) * rows * args.group;
    std::vector<float> partials(partial_rows * octavo::partial_row_floats(layout.head_dim));
    args.first_split = first_split;
    const Kernels& kernels = table_of(isa);
    const auto start = std::chrono::steady_clock::now();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (size_t h = 0; h < kv_heads; ++h) {
        args.kv_head = static_cast<int32_t>(h);
        args.q = q.data() + h * static_cast<size_t>(args.group * layout.head_dim);
        args.out = out.data() + h * static_cast<size_t>(args.group * layout.head_dim);
        if (part_splits <= 0) {
          kernels.attention(&args);
          continue;
        }
        args.partials = partials.data();
        for (args.end_split = end_split; args.end_split > first_split;
             args.end_split = args.begin_split) {
          args.begin_split = std::max(first_split, args.end_split - part_splits);
          kernels.attention(&args);
        }
        kernels.attention_merge(&args);
      }
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return taken.count() / repeats;
  }

  // One row of each of several sequences: q, out [rows, heads, head_dim], block_tables [rows,
  // blocks]. Splits shared_begin .. shared_end - 1, whole for every row, in one call over the first
  // row's table; the others row by row; then merged.
  void attend_members(const std::string& isa, Array<const float, 3> q,
                      Array<const int32_t, 2> block_tables, Array<const int32_t, 1> positions,
                      float scale, float softcap, int window, Array<float, 3> out,
                      int shared_begin, int shared_end) {
    check_queries(q, out);
    const size_t rows = q.shape(0), heads = q.shape(1);
    const size_t kv_heads = static_cast<size_t>(layout.num_kv_heads);
    require(positions.shape(0) == rows && block_tables.shape(0) == rows, "rows differ");
    for (size_t i = 0; i < block_tables.size(); ++i) {
      const int32_t block = block_tables.data()[i];
      require(block >= 0 && block < num_blocks, "block_tables names a block outside the cache");
    }
    const int tokens = static_cast<int>(block_tables.shape(1)) * layout.block_size;
    const int seen = window > 0 ? window : tokens;
    for (size_t r = 0; r < rows; ++r) {
      const int end = positions.data()[r] + 1;
      require(end > 0 && end <= tokens, "block_tables is too short");
      require(end - seen <= shared_begin * octavo::kSplit && 0 <= shared_begin &&
                  shared_begin < shared_end && shared_end * octavo::kSplit <= end,
              "a row does not see all of the shared splits");
    }
    AttentionArgs args{};
    args.layout = &layout;
    args.kv = bytes.data();
    args.group = static_cast<int32_t>(heads / kv_heads);
    args.window = window;
    args.scale = scale;
    args.softcap = softcap;
    const size_t width = heads * q.shape(2), columns = static_cast<size_t>(args.group) * q.shape(2);
    args.q_stride = args.out_stride = static_cast<int64_t>(width);
    std::vector<float> scratch(octavo::attention_scratch_floats(
        static_cast<int>(std::max(rows, size_t{1})), args.group, layout.head_dim));
    args.scratch = scratch.data();
    const size_t split_floats = args.group * octavo::partial_row_floats(layout.head_dim);
    const size_t splits = static_cast<size_t>(tokens / octavo::kSplit) + 1;
    std::vector<float> partials(rows * splits * split_floats);
    const Kernels& kernels = table_of(isa);
    for (size_t h = 0; h < kv_heads; ++h) {
      args.kv_head = static_cast<int32_t>(h);
      std::vector<octavo::AttentionMember> members;
      for (size_t r = 0; r < rows; ++r) {
        float* own = partials.data() + r * splits * split_floats;
        members.push_back({q.data() + r * width + h * columns,
                           own + static_cast<size_t>(shared_begin) * split_floats,
                           positions.data()[r]});
      }
      AttentionArgs shared = args;
      shared.members = members.data();
      shared.rows = static_cast<int32_t>(rows);
      shared.block_table = block_tables.data();
      shared.first_split = shared.begin_split = shared_begin;
      shared.end_split = shared_end;
      kernels.attention(&shared);
      for (size_t r = 0; r < rows; ++r) {
        AttentionArgs row = args;
        row.rows = 1;
        row.block_table = block_tables.data() + r * block_tables.shape(1);
        row.first_position = positions.data()[r];
        row.q = members[r].q;
        row.out = out.data() + r * width + h * columns;
        row.partials = partials.data() + r * splits * split_floats;
        row.end_split = shared_begin;
        if (shared_begin > 0) kernels.attention(&row);
        row.begin_split = shared_end;
        row.end_split = static_cast<int32_t>(splits);
        kernels.attention(&row);
        kernels.attention_merge(&row);
      }
    }
  }
};

// Rows of `tables` are users; [(split, users)] as shared_splits.h says.
nb::list shared_splits(Array<const int32_t, 2> tables, Array<const int32_t, 1> begins,
                       Array<const int32_t, 1> ends, int block_size, int most) {
  require(begins.shape(0) == tables.shape(0) && ends.shape(0) == tables.shape(0), "rows differ");
  require(block_size > 0 && most > 1, "block_size or most is too small");
  const int tokens = static_cast<int>(tables.shape(1)) * block_size;
  std::vector<octavo::SplitUser> users;
  for (size_t i = 0; i < tables.shape(0); ++i) {
    const octavo::SplitUser user = {begins.data()[i], ends.data()[i],
                                    tables.data() + i * tables.shape(1)};
    require(user.begin >= 0 && user.end * octavo::kSplit <= tokens, "splits outside the table");
    users.push_back(user);
  }
  std::vector<int32_t> members;
  std::vector<octavo::SharedSplit> groups;
  octavo::find_shared_splits(users, block_size, most, members, groups);
  nb::list out;
  for (const octavo::SharedSplit& group : groups) {
    nb::list of_group;
    for (int m = 0; m < group.count; ++m) of_group.append(members[group.first + m]);
    out.append(nb::make_tuple(group.split, of_group));
  }
  return out;
}

template <typename T>
const T* field(const nb::object& arrays, const char* name, size_t rows) {
  auto array = nb::cast<Array<const T, 1>>(arrays.attr(name));
  require(array.shape(0) >= rows, name);
  return array.data();
}

// Entries start[0] .. start[rows] of a sparse list must lie within it, in order.
void check_sparse(const int32_t* start, size_t rows, size_t capacity) {
  require(start[0] >= 0, "sparse starts below 0");
  for (size_t r = 0; r < rows; ++r) require(start[r] <= start[r + 1], "sparse starts descend");
  require(static_cast<size_t>(start[rows]) <= capacity, "sparse entries past the list");
}

octavo::SamplingInputs sampling_inputs(const nb::object& arrays, size_t rows, size_t vocab) {
  octavo::SamplingInputs in{};
  in.temperature = field<float>(arrays, "temperature", rows);
  in.top_k = field<int32_t>(arrays, "top_k", rows);
  in.top_p = field<float>(arrays, "top_p", rows);
  in.min_p = field<float>(arrays, "min_p", rows);
  in.repetition_penalty = field<float>(arrays, "repetition_penalty", rows);
  in.presence_penalty = field<float>(arrays, "presence_penalty", rows);
  in.frequency_penalty = field<float>(arrays, "frequency_penalty", rows);
  in.seed = field<uint64_t>(arrays, "seed", rows);
  in.sample_index = field<int32_t>(arrays, "sample_index", rows);
  in.position = field<int32_t>(arrays, "position", rows);
  in.target_ids = field<int32_t>(arrays, "target_ids", rows);
  in.num_logprobs = field<int32_t>(arrays, "num_logprobs", rows);
  in.mask_index = field<int32_t>(arrays, "mask_index", rows);
  auto masks = nb::cast<Array<const uint32_t, 2>>(arrays.attr("masks"));
  in.masks = masks.data();
  in.mask_words = static_cast<int32_t>(masks.shape(1));
  require(masks.shape(1) * 32 >= vocab, "masks are too narrow for the vocabulary");
  for (size_t r = 0; r < rows; ++r) {
    require(in.mask_index[r] < static_cast<int32_t>(masks.shape(0)), "mask_index past the masks");
  }
  in.penalty_start = field<int32_t>(arrays, "penalty_start", rows + 1);
  in.penalty_ids = field<int32_t>(arrays, "penalty_ids", 0);
  in.penalty_counts = field<int32_t>(arrays, "penalty_counts", 0);
  in.bias_start = field<int32_t>(arrays, "bias_start", rows + 1);
  in.bias_ids = field<int32_t>(arrays, "bias_ids", 0);
  in.bias_values = field<float>(arrays, "bias_values", 0);
  in.report_start = field<int32_t>(arrays, "report_start", rows + 1);
  in.report_ids = field<int32_t>(arrays, "report_ids", 0);
  check_sparse(in.report_start, rows, nb::len(nb::object(arrays.attr("report_ids"))));
  check_sparse(in.penalty_start, rows, nb::len(nb::object(arrays.attr("penalty_ids"))));
  check_sparse(in.bias_start, rows, nb::len(nb::object(arrays.attr("bias_ids"))));
  return in;
}

// maxima [rows, blocks] of logits [rows, vocab].
void block_maxima(const std::string& isa, Array<const float, 2> logits, Array<float, 2> maxima) {
  const size_t rows = logits.shape(0), vocab = logits.shape(1), blocks = maxima.shape(1);
  require(maxima.shape(0) == rows &&
              blocks == static_cast<size_t>(octavo::num_logit_blocks(static_cast<int>(vocab))),
          "maxima does not fit the logits");
  table_of(isa).block_maxima(logits.data(), static_cast<int64_t>(vocab), static_cast<int>(rows),
                               static_cast<int>(vocab), maxima.data(),
                               static_cast<int64_t>(blocks));
}

// Samples every row; logits are overwritten. Returns the seconds taken, block maxima (by the ISA's
// kernel) left out.
double sample_rows(Array<float, 2> logits, const nb::object& arrays, Array<int32_t, 1> sampled,
                   Array<float, 1> logprob, Array<int32_t, 1> rank, Array<int32_t, 2> top_ids,
                   Array<float, 2> top_logprobs, const std::string& isa) {
  const size_t rows = logits.shape(0), vocab = logits.shape(1);
  const octavo::SamplingInputs in = sampling_inputs(arrays, rows, vocab);
  require(vocab > 0 && sampled.shape(0) >= rows && logprob.shape(0) >= rows &&
              rank.shape(0) >= rows && top_ids.shape(0) >= rows && top_logprobs.shape(0) >= rows &&
              top_ids.shape(1) == top_logprobs.shape(1),
          "an output array is too small");
  const octavo::SamplingOutputs out{sampled.data(),      logprob.data(), rank.data(),
                                    top_ids.data(),      top_logprobs.data(),
                                    static_cast<int32_t>(top_ids.shape(1))};
  const size_t bytes = octavo::sample_scratch_bytes(static_cast<int>(vocab));
  std::unique_ptr<uint8_t[]> scratch(new uint8_t[bytes]());
  const size_t blocks = octavo::num_logit_blocks(static_cast<int>(vocab));
  std::vector<float> maxima(rows * blocks);
  table_of(isa).block_maxima(logits.data(), static_cast<int64_t>(vocab), static_cast<int>(rows),
                               static_cast<int>(vocab), maxima.data(),
                               static_cast<int64_t>(blocks));
  const auto start = std::chrono::steady_clock::now();
  for (size_t r = 0; r < rows; ++r) {
    octavo::sample_row(logits.data() + r * vocab, maxima.data() + r * blocks,
                       static_cast<int>(vocab), in, static_cast<int>(r), out, scratch.get());
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return taken.count();
}

}  // namespace

void bind_kernels(nb::module_& module) {
  module.def("kernel_isas", &kernel_isas, "ISAs whose kernels this CPU can run.");
  module.def("norm_rows", &norm_rows, "isa"_a, "x"_a, "weight"_a.none(), "add_one"_a, "eps"_a,
             "values"_a, "scale"_a.none() = nb::none(), "isum"_a.none() = nb::none(),
             "fsum"_a.none() = nb::none(), "isum_low"_a.none() = nb::none());
  module.def("silu_mul", &silu_mul, "isa"_a, "gate"_a, "up"_a, "values"_a,
             "scale"_a.none() = nb::none(), "isum"_a.none() = nb::none(),
             "fsum"_a.none() = nb::none(), "isum_low"_a.none() = nb::none());
  module.def("head_norm", &head_norm, "isa"_a, "x"_a, "weight"_a, "add_one"_a, "eps"_a);
  module.def("rope", &rope, "isa"_a, "x"_a, "cos"_a, "sin"_a, "interleaved"_a, "positions"_a);
  nb::class_<KVCache>(module, "KVCacheLayer")
      .def(nb::init<const std::string&, int, int, int, int>(), "dtype"_a, "num_kv_heads"_a,
           "head_dim"_a, "block_size"_a, "num_blocks"_a)
      .def("write", &KVCache::write, "isa"_a, "slots"_a, "k"_a, "v"_a)
      .def("attend", &KVCache::attend, "isa"_a, "q"_a, "block_table"_a, "first_position"_a,
           "scale"_a, "softcap"_a, "window"_a, "out"_a, "repeats"_a = 1, "part_splits"_a = 0)
      .def("attend_members", &KVCache::attend_members, "isa"_a, "q"_a, "block_tables"_a,
           "positions"_a, "scale"_a, "softcap"_a, "window"_a, "out"_a, "shared_begin"_a,
           "shared_end"_a)
      .def("bytes", [](const KVCache& cache) {
        return nb::bytes(reinterpret_cast<const char*>(cache.bytes.data()), cache.bytes.size());
      });
  module.def("shared_splits", &shared_splits, "tables"_a, "begins"_a, "ends"_a, "block_size"_a,
             "most"_a);
  module.def("sample_rows", &sample_rows, "logits"_a, "arrays"_a, "sampled"_a, "logprob"_a,
             "rank"_a, "top_ids"_a, "top_logprobs"_a, "isa"_a = "generic");
  module.def("block_maxima", &block_maxima, "isa"_a, "logits"_a, "maxima"_a);
}
