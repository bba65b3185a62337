// Paged attention for the generic table.
#define OCTAVO_ISA generic
#include "cpu/vec_math_generic.h"
// (the lane operations come first: vec_math.h builds on them)
#include "cpu/vec_math.h"
#include "cpu/attention_impl.h"
