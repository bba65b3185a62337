// The kernel tables, one per ISA.
#include "cpu/isa_kernels.h"
#include "cpu_isa.h"

namespace octavo {

#define OCTAVO_TABLE(isa)                                                                     \
  {                                                                                           \
    #isa, isa::norm_rows, isa::head_norm, isa::rope, isa::kv_write, isa::attention,           \
        isa::attention_merge, isa::silu_mul, isa::block_maxima                                \
  }

const Kernels* kernels_generic() {
  static const Kernels table = OCTAVO_TABLE(generic);
  return &table;
}

const Kernels* kernels_avx2() {
#if defined(OCTAVO_HAVE_AVX2)
  static const Kernels table = OCTAVO_TABLE(avx2);
  return cpu_has_avx2() ? &table : nullptr;
#else
  return nullptr;
#endif
}

const Kernels* kernels_avx512() {
#if defined(OCTAVO_HAVE_AVX512)
  static const Kernels table = OCTAVO_TABLE(avx512);
  return cpu_has_avx512() ? &table : nullptr;
#else
  return nullptr;
#endif
}

const Kernels* kernels_neon() {
#if defined(OCTAVO_HAVE_NEON)
  static const Kernels table = OCTAVO_TABLE(neon);
  return &table;
#else
  return nullptr;
#endif
}

size_t attention_scratch_floats(int rows, int group, int head_dim) {
  const int queries = rows * group < kAttentionQueries ? rows * group : kAttentionQueries;
  return attention_working_floats(queries, head_dim) +
         2 * static_cast<size_t>(round_up(head_dim, 16)) * queries +
         16;  // the kernel aligns to 64 bytes
}

}  // namespace octavo
