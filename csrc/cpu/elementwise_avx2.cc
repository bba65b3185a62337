// Row-wise kernels for the avx2 table.
#define OCTAVO_ISA avx2
#include "cpu/vec_math_avx2.h"
// (the lane operations come first: vec_math.h builds on them)
#include "cpu/vec_math.h"
#include "cpu/elementwise_impl.h"
