// Convolutions of any kernel size and stride as products of bfloat16 numbers with float32 sums (docs/arithmetic.md):
// for `--precision bfloat16`. Arguments are as in im2col.h, in float32; input channels in multiples of 8, too.
//
// A pair is two bfloat16 numbers that are neighbours in a sum, the first one in the low half. CPUs with AVX512_BF16
// multiply and add pairs in one instruction. All others compute the same bits, several times slower.
#pragma once

#include "im2col.h"

namespace paceline::half {

// Whether the instruction is used. Only a CPU that has it may set it, before the first product (kernels/library.py).
extern bool used;

void forward(const im2col::Shape& s, const float* x, const float* filter, float* y, const Done& done);
void input_gradient(const im2col::Shape& s, const float* dy, const float* filter, float* dx, const Done& done);
void filter_gradient(const im2col::Shape& s, const float* x, const float* dy, float* dfilter);

}  // namespace paceline::half
