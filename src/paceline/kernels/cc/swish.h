// The activation z sigmoid(alpha z) (SiLU with alpha 1, GELU in its sigmoid form with 1.702) after a bias or
// after batch normalisation, and its gradients.
//
// float32, channels in multiples of 8, one thread, same bits for the same arguments.
#pragma once

#include <cstddef>

namespace paceline::swish {

struct Shape {
  size_t rows;  // images x height x width
  int c;
};

// y = act(factor x + offset), with one factor and offset for each channel.
void forward(const Shape& s, const float* x, float alpha, const float* factor, const float* offset, float* y);

// Of y = act(factor x + offset): dz, the gradient of what the activation takes, and its sums over the rows with
// 1 (sum) and with x - shift (product). `dz` may be dy, or null if only the sums are wanted.
void backward(const Shape& s, const float* dy, const float* x, float alpha, const float* factor,
              const float* offset, const float* shift, float* dz, double* sum, double* product);

// y = factor x + of_x other + constant, with one of each for each channel. y may be x.
void combine(const Shape& s, const float* x, const float* other, const float* factor, const float* of_x,
             const float* constant, float* y);

}  // namespace paceline::swish
