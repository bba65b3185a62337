// Row-wise kernels for the neon table.
#define OCTAVO_ISA neon
#include "cpu/vec_math_neon.h"
// (the lane operations come first: vec_math.h builds on them)
#include "cpu/vec_math.h"
#include "cpu/elementwise_impl.h"
