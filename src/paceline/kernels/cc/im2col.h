// Convolutions of any kernel size and stride as products of matrices, by im2col in blocks that stay in the cache.
//
// They serve where Winograd's method does not apply: 1x1, strides above 1, the stem. float32, NHWC, HWIO; output
// channels in multiples of 8, and for the gradient of the input its channels, too. One thread, same bits.
#pragma once

#include <cstddef>

#include "done.h"

namespace paceline::im2col {

struct Shape {
  int n, h, w, c;      // input
  int oh, ow, k;       // output
  int kh, kw, stride;  // kernel
  int top, left;       // rows and columns of zeros before the image
};

void forward(const Shape& s, const float* x, const float* filter, float* y, const Done& done = {});
void input_gradient(const Shape& s, const float* dy, const float* filter, float* dx,
                    const Done& done = {});
void filter_gradient(const Shape& s, const float* x, const float* dy, float* dfilter);

}  // namespace paceline::im2col
