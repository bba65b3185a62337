// Paged attention for the avx512 table.
#define OCTAVO_ISA avx512
#include "cpu/vec_math_avx512.h"
// (the lane operations come first: vec_math.h builds on them)
#include "cpu/vec_math.h"
#include "cpu/attention_impl.h"
