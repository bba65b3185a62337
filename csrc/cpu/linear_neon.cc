// Matrix products for the neon table, of any AArch64 CPU.
#include "cpu/linear_neon_tiles.h"

namespace octavo {

const LinearKernels* linear_neon() {
  static const LinearKernels table = {"neon", tile};
  return &table;
}

}  // namespace octavo
