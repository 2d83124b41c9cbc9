// 3x3 convolutions with stride 1 and SAME padding by Winograd's method F(4x4, 3x3), for training.
//
// NHWC images of float32, or of `Half` (bfloat16.h) and computed in float32, HWIO filters, channels in multiples of 8, any height and width from 1. A call
// runs on the calling thread alone and gives the same bits for the same arguments, whatever else runs.
#pragma once

#include <cstddef>

#include "done.h"

namespace paceline::winograd {

struct Shape {
  int n, h, w;  // images
  int c, k;     // channels of the convolution's input and output
};

// y[n,h,w,k] = conv(x[n,h,w,c], filter[3,3,c,k])
template <typename T>
void forward(const Shape& s, const T* x, const float* filter, T* y, const Done& done = {});

// dx[n,h,w,c] from dy[n,h,w,k]
template <typename T>
void input_gradient(const Shape& s, const T* dy, const float* filter, T* dx, const Done& done = {});

// dfilter[3,3,c,k] from x[n,h,w,c] and dy[n,h,w,k]
template <typename T>
void filter_gradient(const Shape& s, const T* x, const T* dy, float* dfilter);

}  // namespace paceline::winograd
