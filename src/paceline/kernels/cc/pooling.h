// The maximum of square windows. Pixels outside the image do not take part. The first maximum of a window takes its
// gradient; a pixel gets what it takes in the order of the windows.
//
// Images are float32, or `Half` (bfloat16.h), where each sum is rounded. Channels in multiples of 8, one thread, same
// bits for the same arguments.
#pragma once

namespace paceline::pooling {

struct Shape {
  int n, h, w, c;
  int size, stride;
  int oh, ow;     // of the output
  int top, left;  // how far the first window begins outside
};

template <typename T>
void forward(const Shape& s, const T* x, T* y);
template <typename T>
void backward(const Shape& s, const T* x, const T* dy, T* dx);

}  // namespace paceline::pooling
