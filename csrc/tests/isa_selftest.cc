// Compares every kernel of every ISA that this CPU and build have with the generic one, bit for bit,
// over odd shapes and values. For machines (or emulators) without Python; says nothing of whether the
// generic code is right, which the Python tests do.
//
// isa_selftest [TABLE ...]: the tables that must be there, e.g. "neon neondot". Prints one line a
// table with the number of calls compared and a digest of the generic results, which is the same on
// every machine; exits with 1 if a bit differed or a table is missing.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "float_convert.h"
#include "linear.h"
#include "octavo/kernels.h"
#include "tests/selftest_report.h"

namespace octavo {
namespace {

// Rows of activations with their memory. The bytes start equal, so whole buffers can be compared.
struct Acts {
  std::vector<float> f32, scale, fsum;
  std::vector<uint16_t> bf16;
  std::vector<int8_t> q;
  std::vector<int32_t> isum, isum_low;
  ActRows rows;

  Acts(ActKind kind, int m, int k)
      : f32(static_cast<size_t>(m) * k),
        scale(static_cast<size_t>(m) * k / kQuantGroup),
        fsum(scale.size()),
        bf16(f32.size()),
        q(f32.size()),
        isum(scale.size()),
        isum_low(scale.size()),
        rows{kind,         k,           f32.data(),  bf16.data(),    q.data(),
             scale.data(), isum.data(), fsum.data(), isum_low.data()} {}

  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> all;
    const auto append = [&all](const void* p, size_t n) {
      const uint8_t* from = static_cast<const uint8_t*>(p);
      all.insert(all.end(), from, from + n);
    };
    append(f32.data(), f32.size() * 4);
    append(bf16.data(), bf16.size() * 2);
    append(q.data(), q.size());
    append(scale.data(), scale.size() * 4);
    append(isum.data(), isum.size() * 4);
    append(fsum.data(), fsum.size() * 4);
    append(isum_low.data(), isum_low.size() * 4);
    return all;
  }
};

void same_acts(Report& report, const std::string& what, const Acts& expected, const Acts& found) {
  const std::vector<uint8_t> e = expected.bytes(), f = found.bytes();
  report.same(what, e.data(), f.data(), e.size());
}

const std::vector<int> kAnyColumns = {1, 7, 15, 16, 17, 31, 33, 100, 576};
const std::vector<int> kGroupColumns = {32, 64, 96, 576};

const std::vector<int>& columns_of(ActKind kind) {
  return kind == ActKind::kI8 ? kGroupColumns : kAnyColumns;
}

void spoil(Random& random, std::vector<float>& x, int variant) {
  const int at = random.below(static_cast<int>(x.size()));
  if (variant == 1) x[at] = std::nanf("");
  if (variant == 2) x[at] = INFINITY;
  if (variant == 3) x.assign(x.size(), 0.0f);
}

void check_rows(const Kernels& g, const Kernels& k, Report& report) {
  Random random(1);
  for (ActKind kind : {ActKind::kF32, ActKind::kBF16, ActKind::kI8}) {
    for (int columns : columns_of(kind)) {
      for (int variant = 0; variant < 4; ++variant) {
        const int m = 3, ld = columns + 5;
        std::vector<float> x = random.values(static_cast<size_t>(m) * ld);
        const std::vector<float> w = random.values(columns), up = random.values(x.size());
        spoil(random, x, variant);
        report.digest_what_follows(variant == 0 || variant == 3);
        for (const float* weight : {static_cast<const float*>(nullptr), w.data()}) {
          Acts a(kind, m + 1, columns), b(kind, m + 1, columns);
          g.norm_rows(x.data(), ld, m, columns, weight, 1.0f, 1e-5f, &a.rows, 1);
          k.norm_rows(x.data(), ld, m, columns, weight, 1.0f, 1e-5f, &b.rows, 1);
          same_acts(report, text("norm_rows", {static_cast<int>(kind), columns, variant}), a, b);
        }
        Acts a(kind, m, columns + 64), b(kind, m, columns + 64);
        g.silu_mul(x.data(), up.data(), ld, m, columns, &a.rows, 0, 32);
        k.silu_mul(x.data(), up.data(), ld, m, columns, &b.rows, 0, 32);
        same_acts(report, text("silu_mul", {static_cast<int>(kind), columns, variant}), a, b);
      }
    }
  }
  report.digest_what_follows(true);
}

void check_maxima(const Kernels& g, const Kernels& k, Report& report) {
  Random random(5);
  for (int columns : {1, 15, 16, 63, 64, 65, 100, 256}) {
    for (int variant = 0; variant < 4; ++variant) {
      const int m = 3, ld = columns + 5, blocks = num_logit_blocks(columns);
      std::vector<float> x = random.values(static_cast<size_t>(m) * ld);
      std::vector<float> a(m * blocks), b(m * blocks);
      spoil(random, x, variant);
      g.block_maxima(x.data(), ld, m, columns, a.data(), blocks);
      k.block_maxima(x.data(), ld, m, columns, b.data(), blocks);
      report.same(text("block_maxima", {columns, variant}), a.data(), b.data(), a.size() * 4);
    }
  }
}

void check_heads(const Kernels& g, const Kernels& k, Report& report) {
  Random random(2);
  for (int dim : {2, 6, 16, 34, 64, 80, 100, 128}) {
    const std::vector<float> x = random.values(dim), w = random.values(dim);
    std::vector<float> a = x, b = x;
    g.head_norm(a.data(), dim, w.data(), 0.0f, 1e-6f);
    k.head_norm(b.data(), dim, w.data(), 0.0f, 1e-6f);
    report.same(text("head_norm", {dim}), a.data(), b.data(), a.size() * 4);
    const std::vector<float> cos = random.values(3 * static_cast<size_t>(dim) / 2);
    const std::vector<float> sin = random.values(cos.size());
    for (bool interleaved : {false, true}) {
      const RopeTable table = {cos.data(), sin.data(), dim, interleaved};
      a = b = x;
      g.rope(a.data(), &table, 2);
      k.rope(b.data(), &table, 2);
      report.same(text("rope", {dim, interleaved}), a.data(), b.data(), a.size() * 4);
    }
  }
}

// A sequence's K and V in shuffled blocks.
struct Cache {
  KVLayout layout;
  std::vector<int32_t> block_table;
  std::vector<float> memory;  // of 64-byte aligned bytes
  uint8_t* bytes;
  size_t size;

  Cache(KVDtype dtype, int heads, int dim, int block_size, int blocks)
      : layout(make_kv_layout(dtype, heads, dim, block_size)) {
    size = layout.block_stride * static_cast<size_t>(blocks);
    memory.resize(size / 4 + 16);
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
    bytes = reinterpret_cast<uint8_t*>(memory.data()) + (64 - address % 64) % 64;
    for (int b = 0; b < blocks; ++b) block_table.push_back((b * 7 + 3) % blocks);
  }
  int64_t slot(int position) const {
    return static_cast<int64_t>(block_table[position / layout.block_size]) * layout.block_size +
           position % layout.block_size;
  }
};

// The room of one attention call's results.
struct Attended {
  std::vector<float> out, scratch, partials;
  float* aligned = nullptr;  // of partials

  Attended(const AttentionArgs& args, int splits)
      : out(static_cast<size_t>(args.rows) * args.out_stride),
        scratch(attention_scratch_floats(args.rows, args.group, args.layout->head_dim)) {
    const size_t row = partial_row_floats(args.layout->head_dim);
    partials.resize(row * splits * args.rows * args.group + 16);
    const uintptr_t address = reinterpret_cast<uintptr_t>(partials.data());
    aligned = partials.data() + (64 - address % 64) % 64 / 4;
  }
};

void check_attention_call(const Kernels& g, const Kernels& k, AttentionArgs args,
                          const std::string& what, Report& report) {
  const int end = args.first_position + args.rows;
  const int lowest = args.window > 0 && args.first_position + 1 > args.window
                         ? args.first_position + 1 - args.window
                         : 0;
  const int first_split = lowest / kSplit, splits = (end + kSplit - 1) / kSplit - first_split;
  Attended whole[] = {Attended(args, splits), Attended(args, splits)};
  Attended parts[] = {Attended(args, splits), Attended(args, splits)};
  for (int i = 0; i < 2; ++i) {
    const Kernels& kernels = i == 0 ? g : k;
    AttentionArgs call = args;
    call.out = whole[i].out.data();
    call.scratch = whole[i].scratch.data();
    kernels.attention(&call);
    call.out = parts[i].out.data();
    call.scratch = parts[i].scratch.data();
    call.partials = parts[i].aligned;
    call.first_split = call.begin_split = first_split;
    call.end_split = first_split + splits;
    kernels.attention(&call);
    kernels.attention_merge(&call);
  }
  const size_t bytes = whole[0].out.size() * 4;
  report.same("attention " + what, whole[0].out.data(), whole[1].out.data(), bytes);
  report.same("partials " + what, parts[0].aligned, parts[1].aligned,
              (parts[0].partials.size() - 16) * 4);
  report.same("merge " + what, whole[0].out.data(), parts[1].out.data(), bytes);
}

// Rows at positions behind the first split, which sequences share, in one call and one by one.
void check_members(const Kernels& g, const Kernels& k, AttentionArgs args,
                   const std::vector<int>& positions, const std::string& what, Report& report) {
  const int rows = args.rows;
  const size_t split = static_cast<size_t>(args.group) * partial_row_floats(args.layout->head_dim);
  Attended together[] = {Attended(args, 1), Attended(args, 1)}, alone(args, 1);
  args.scratch = alone.scratch.data();
  args.window = 0;
  args.end_split = 1;
  for (int i = 0; i < 2; ++i) {
    std::vector<AttentionMember> members;
    for (int r = 0; r < rows; ++r) {
      members.push_back({args.q + r * args.q_stride, together[i].aligned + r * split, positions[r]});
      AttentionArgs row = args;
      row.rows = 1;
      row.q = members[r].q;
      row.first_position = positions[r];
      row.partials = alone.aligned + r * split;
      (i == 0 ? g : k).attention(&row);
    }
    AttentionArgs call = args;
    call.members = members.data();
    (i == 0 ? g : k).attention(&call);
    report.same("members" + what, alone.aligned, together[i].aligned, rows * split * 4);
  }
}

void check_attention(const Kernels& g, const Kernels& k, Report& report) {
  Random random(3);
  const int heads = 2, tokens = 330;
  for (KVDtype dtype : {KVDtype::kF32, KVDtype::kBF16, KVDtype::kI8}) {
    for (int dim : {16, 36, 64, 80, 128}) {
      const int block_size = dim == 64 ? 32 : 16;
      Cache a(dtype, heads, dim, block_size, 22), b(dtype, heads, dim, block_size, 22);
      for (int i = 0; i < tokens * heads; ++i) {
        const std::vector<float> key = random.values(dim), value = random.values(dim);
        g.kv_write(&a.layout, a.bytes, a.slot(i / heads), i % heads, key.data(), value.data());
        k.kv_write(&b.layout, b.bytes, b.slot(i / heads), i % heads, key.data(), value.data());
      }
      report.same(text("kv_write", {static_cast<int>(dtype), dim}), a.bytes, b.bytes, a.size);
      for (int group : {1, 3, 5, 8}) {
        for (int rows : {1, 2, 13}) {
          const int stride = group * dim + 4;
          const std::vector<float> q = random.values(static_cast<size_t>(rows) * stride);
          for (int first : {0, 5, 31, 250, tokens - rows}) {
            const int window = random.below(3) == 0 ? 20 + random.below(200) : 0;
            const float softcap = random.below(3) == 0 ? 30.0f : 0.0f;
            AttentionArgs args = {};
            args.layout = &a.layout;
            args.kv = a.bytes;
            args.block_table = a.block_table.data();
            args.kv_head = 1;
            args.group = group;
            args.rows = rows;
            args.first_position = first;
            args.window = window;
            args.scale = 0.125f;
            args.softcap = softcap;
            args.q = q.data();
            args.q_stride = args.out_stride = stride;
            check_attention_call(
                g, k, args,
                text("", {static_cast<int>(dtype), dim, group, rows, first, window,
                          static_cast<int>(softcap)}),
                report);
            std::vector<int> positions(rows);
            for (int& position : positions) position = kSplit - 1 + random.below(tokens - kSplit);
            check_members(g, k, args, positions,
                          text("", {static_cast<int>(dtype), dim, group, rows}), report);
          }
        }
      }
    }
  }
}

struct Weights {
  PackedMatrix matrix;
  std::vector<uint8_t> bytes;
};

// A scale as a file may hold it: either sign, any size below 4, subnormals and zero among them.
uint16_t half_scale(Random& random) {
  const uint64_t word = random.word();
  return static_cast<uint16_t>((word & 0x83FF) | ((word >> 16) % 17) << 10);
}

void fill_scales(Random& random, ScaleType type, uint8_t* at, const uint8_t* end) {
  const bool wide = type == ScaleType::kF32, bytes = is_super(type);
  while (at < end) {
    const float value = random.value();
    const uint16_t half = half_scale(random);
    const uint8_t byte = static_cast<uint8_t>(random.word());
    if (wide) std::memcpy(at, &value, 4);
    if (bytes) *at = byte;
    if (!wide && !bytes) std::memcpy(at, &half, 2);
    at += wide ? 4 : bytes ? 1 : 2;
  }
}

void fill_quantized(Random& random, Weights& w, int fill) {
  const Layout layout = w.matrix.layout;
  const ScaleType scale = w.matrix.scale;
  const size_t payload = payload_bytes(layout);
  const size_t block = quant_block_bytes(layout, scale);
  const size_t header = super_bytes(layout, scale);
  const int blocks = w.matrix.k / kQuantGroup;
  uint8_t* at = w.bytes.data();
  for (int b = 0; b < w.matrix.panels * blocks; ++b, at += block) {
    if (header && b % kSuperBlocks == 0) {
      fill_scales(random, ScaleType::kF16, at, at + header);
      at += header;
    }
    for (size_t i = 0; i < payload; ++i) {
      at[i] = fill >= 0 ? static_cast<uint8_t>(fill) : static_cast<uint8_t>(random.word());
    }
    fill_scales(random, scale, at + payload, at + block);
  }
}

Weights random_weights(Random& random, QuantType type, int rows, int k, int fill) {
  Weights w;
  w.matrix = packed_shape(type, rows, k, rows);
  w.bytes.resize(w.matrix.bytes());
  const bool f32 = w.matrix.layout == Layout::kF32, bf16 = w.matrix.layout == Layout::kBF16;
  const bool floats = w.matrix.scale == ScaleType::kNone;
  for (size_t at = 0; floats && at < w.bytes.size(); at += f32 ? 4 : 2) {
    const float value = random.value();
    const uint16_t half = bf16 ? f32_to_bf16(value) : half_scale(random);
    if (f32) std::memcpy(&w.bytes[at], &value, 4);
    if (!f32) std::memcpy(&w.bytes[at], &half, 2);
  }
  w.matrix.data = w.bytes.data();
  if (floats) return w;
  fill_quantized(random, w, fill);
  return w;
}

// `extreme`: all int8 activations at the end of their range, which strains the integer sums most.
Acts random_acts(Random& random, ActKind kind, int m, int k, int extreme) {
  Acts acts(kind, m, k);
  for (float& x : acts.f32) x = random.value();
  for (uint16_t& x : acts.bf16) x = f32_to_bf16(random.value());
  for (int8_t& x : acts.q) x = static_cast<int8_t>(extreme ? extreme : random.below(255) - 127);
  for (size_t g = 0; g < acts.isum.size(); ++g) {
    for (int i = 0; i < kQuantGroup; ++i) {
      acts.isum[g] += acts.q[g * kQuantGroup + i];
      if (i < kQuantGroup / 2) acts.isum_low[g] = acts.isum[g];
    }
    acts.scale[g] = std::fabs(random.value());
    acts.fsum[g] = acts.scale[g] * static_cast<float>(acts.isum[g]);
  }
  return acts;
}

void check_product(const LinearKernels& g, const LinearKernels& k, const Weights& w, int panels,
                   const Acts& acts, int m, const std::string& what, Report& report) {
  const int64_t ldo = panels * kLanes + 3;
  std::vector<float> a(static_cast<size_t>(m) * ldo), b(a.size());
  const int first = w.matrix.panels - panels;
  g.tile(w.matrix, first, panels, acts.rows, 1, m, a.data(), ldo);
  k.tile(w.matrix, first, panels, acts.rows, 1, m, b.data(), ldo);
  report.same(what, a.data(), b.data(), a.size() * 4);
}

void check_linear(const LinearKernels& g, const LinearKernels& k, Report& report) {
  Random random(4);
  const bool own_bf16 = std::strcmp(k.isa, "avx512bf16") == 0;  // vdpbf16ps rounds in its own way
  for (int t = 0; t < static_cast<int>(QuantType::kCount); ++t) {
    const QuantType type = static_cast<QuantType>(t);
    if (type == QuantType::kBF16 && own_bf16) continue;
    const ScaleType scale = packed_shape(type, 16, 256, 16).scale;
    const bool floats = scale == ScaleType::kNone, super = is_super(scale);
    for (int columns : {floats ? 10 : super ? 256 : 32, floats ? 34 : super ? 768 : 96}) {
      // Random codes, then all zero and all ones against either end of the activations.
      for (int variant = 0; variant < (floats ? 1 : 5); ++variant) {
        const int fill = variant == 0 ? -1 : variant <= 2 ? 0 : 255;
        const int extreme = variant == 0 ? 0 : variant % 2 ? 127 : -127;
        for (int panels : {1, 2, 3, 6}) {
          const Weights w = random_weights(random, type, (panels + 1) * 16 - 5, columns, fill);
          for (int m : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33}) {
            const Acts acts = random_acts(random, w.matrix.act_kind(), m + 1, columns, extreme);
            check_product(g, k, w, panels, acts, m,
                          text("product", {t, columns, variant, panels, m}), report);
          }
        }
      }
    }
  }
}

std::vector<const LinearKernels*> linear_tables() {
  std::vector<const LinearKernels*> found;
  for (const LinearKernels* table : {linear_avx2(), linear_avx512(), linear_avx512bf16(),
                                     linear_neon(), linear_neondot()}) {
    if (table != nullptr) found.push_back(table);
  }
  return found;
}

// Every kernel table has a linear table of its name.
bool is_there(const char* isa) {
  for (const LinearKernels* table : linear_tables()) {
    if (std::strcmp(table->isa, isa) == 0) return true;
  }
  std::printf("%s: this CPU or build lacks it\n", isa);
  return false;
}

bool check_all() {
  bool good = true;
  for (const Kernels* table : {kernels_avx2(), kernels_avx512(), kernels_neon()}) {
    if (table == nullptr) continue;
    Report report(table->isa);
    check_rows(*kernels_generic(), *table, report);
    check_maxima(*kernels_generic(), *table, report);
    check_heads(*kernels_generic(), *table, report);
    check_attention(*kernels_generic(), *table, report);
    good &= report.finish("rows, heads and attention");
  }
  for (const LinearKernels* table : linear_tables()) {
    Report report(table->isa);
    check_linear(*linear_generic(), *table, report);
    good &= report.finish("products");
  }
  return good;
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (!octavo::is_there(argv[i])) return 1;
  }
  return octavo::check_all() ? 0 : 1;
}
