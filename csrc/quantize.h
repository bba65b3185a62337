// Float weights to block-quantized ones, with the bits of octavo/weights/quantize.py.
#pragma once
#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace octavo {

// Whether quantize_rows knows the pair: F32, F16 or BF16 to Q4_1 or Q8_0.
bool can_quantize(QuantType from, QuantType to);

// `rows` rows of `columns` (a multiple of 32) weights, stored as the model file stores them, to
// blocks of `to`. Returns the largest magnitude; a value that is not finite makes it NaN or infinite,
// and the blocks are then of no use.
float quantize_rows(QuantType from, QuantType to, const uint8_t* source, size_t rows,
                    size_t columns, uint8_t* out);

}  // namespace octavo
