// Batch normalisation over the last axis with what follows it, for training:
//   y = act(gamma (x - mean) / sqrt(variance + epsilon) + beta [+ residual]),  act(z) = z > 0 ? z : slope z
//
// Images are float32, or `Half` (bfloat16.h), computed in float32. Channels in multiples of 8, one thread, same bits for
// the same arguments. A slope of 1 is no activation, 0 is ReLU, anything between is leaky ReLU.
#pragma once

#include <cstddef>
#include <vector>

namespace paceline::batch_norm {

struct Shape {
  size_t rows;  // images x height x width
  int c;
};

// The statistics of rows that become known one after the other. Their order does not depend on when that is.
class Moments {
 public:
  explicit Moments(int c) : c_(c) {}

  // The first `rows` of x are known. All but the last few are added, unless these are `all`.
  template <typename T>
  void add(const T* x, size_t rows, bool all = false);

  // Of each channel: the mean, 1 / sqrt(variance + epsilon), and the unbiased variance (for moving statistics).
  template <typename T>
  void finish(const T* x, size_t rows, float epsilon, float* mean, float* scale, float* variance);

 private:
  int c_;
  size_t done_ = 0;           // wide rows
  std::vector<float> shift_;  // the first row, so that a large mean does not cancel the variance
  std::vector<double> sum_, square_;
};

// gamma (x - mean) scale + beta as factor x + offset.
struct Affine {
  std::vector<float> factor, offset;
  Affine(int c, const float* gamma, const float* beta, const float* mean, const float* scale);
};

// 1 / sqrt(variance + epsilon) of each channel, for inference with moving statistics.
void scale(int c, const float* variance, float epsilon, float* scale);

// y += x
template <typename T>
void add(const T* x, size_t numbers, T* y);

// `residual` may be null; y may be x.
template <typename T>
void forward(const Shape& s, const T* x, const T* residual, float slope, const float* gamma, const float* beta,
             const float* mean, const float* scale, T* y);

// With a residual, `y` is the output of forward and `dresidual` takes the residual's gradient; without, both
// are null. dx may be dy if there is no residual; dresidual may be dy.
template <typename T>
void backward(const Shape& s, const T* dy, const T* x, const T* y, float slope, const float* gamma, const float* beta,
              const float* mean, const float* scale, T* dx, T* dresidual, float* dgamma, float* dbeta);

}  // namespace paceline::batch_norm
