// The maximum of 2x2 windows at distance 2; a last odd row or column is left out. The first maximum of a window
// takes its gradient.
//
// float32, channels in multiples of 8, one thread, same bits for the same arguments.
#pragma once

namespace paceline::pooling {

struct Shape {
  int n, h, w, c;
};

void forward(const Shape& s, const float* x, float* y);
void backward(const Shape& s, const float* x, const float* dy, float* dx);

}  // namespace paceline::pooling
