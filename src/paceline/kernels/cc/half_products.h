// Convolutions of any kernel size and stride as products of bfloat16 numbers with float32 sums (docs/arithmetic.md):
// for `--precision bfloat16`. Arguments are as in im2col.h, images as bfloat16; input channels in multiples of 2, and for
// the gradient of the input of 8.
//
// A pair is two bfloat16 numbers that are neighbours in a sum, the first one in the low half. CPUs with AVX512_BF16
// multiply and add pairs in one instruction. All others compute the same bits, several times slower.
#pragma once

#include "half.h"
#include "im2col.h"

namespace paceline::half {

// y is float or Half.
template <typename T>
void forward(const im2col::Shape& s, const Half* x, const float* filter, T* y, const Done& done);
void input_gradient(const im2col::Shape& s, const Half* dy, const float* filter, Half* dx, const Done& done);
void filter_gradient(const im2col::Shape& s, const Half* x, const Half* dy, float* dfilter);

// Numbers to bfloat16, or back.
template <typename T, typename U>
void convert(const T* x, size_t size, U* y);

}  // namespace paceline::half
