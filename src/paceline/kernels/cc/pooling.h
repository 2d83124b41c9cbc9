// The maximum of square windows. Pixels outside the image do not take part. The first maximum of a window takes its
// gradient; a pixel gets what it takes in the order of the windows.
//
// float32, channels in multiples of 8, one thread, same bits for the same arguments.
#pragma once

namespace paceline::pooling {

struct Shape {
  int n, h, w, c;
  int size, stride;
  int oh, ow;     // of the output
  int top, left;  // how far the first window begins outside
};

void forward(const Shape& s, const float* x, float* y);
void backward(const Shape& s, const float* x, const float* dy, float* dx);

}  // namespace paceline::pooling
