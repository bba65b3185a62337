// Matrix products for CPUs with the dot-product extension (Armv8.2 and later).
#include "cpu_isa.h"

#include "cpu/linear_neon_tiles.h"

#if !defined(__ARM_FEATURE_DOTPROD)
#error "this file is compiled with the dot-product extension"
#endif

namespace octavo {

const LinearKernels* linear_neondot() {
  static const LinearKernels table = {"neondot", tile};
  return cpu_has_neondot() ? &table : nullptr;
}

}  // namespace octavo
