// Stands in for the ISA files a build does not have.
#include "linear.h"

namespace octavo {

#ifndef OCTAVO_HAVE_AVX2
const LinearKernels* linear_avx2() { return nullptr; }
#endif
#ifndef OCTAVO_HAVE_AVX512
const LinearKernels* linear_avx512() { return nullptr; }
#endif
#ifndef OCTAVO_HAVE_AVX512BF16
const LinearKernels* linear_avx512bf16() { return nullptr; }
#endif
#ifndef OCTAVO_HAVE_NEON
const LinearKernels* linear_neon() { return nullptr; }
const LinearKernels* linear_neondot() { return nullptr; }
#endif

}  // namespace octavo
