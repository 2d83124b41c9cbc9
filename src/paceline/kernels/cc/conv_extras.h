// What convolutions may compute besides y and dx.
#pragma once

#include "batch_norm.h"
#include "done.h"
#include "tensors.h"

namespace paceline {
namespace {

// Outputs that a convolution may have after y: the moments of y, and its own input once more. The latter is for a
// fork: what also uses the input takes it from here, and its gradient is added to that of the convolution.
class Extras {
 public:
  explicit Extras(OpKernelConstruction* context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_moments", &num_moments_));
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES(context, num_moments_ == 0 || num_moments_ == 3,
                errors::InvalidArgument("num_moments must be 0 or 3, not ", num_moments_));
  }

  // Calls convolve(done) and writes the outputs; y is of T.
  template <typename T, typename F>
  void compute(OpKernelContext* context, const Tensor& y, F convolve) const {
    for (int i = 1 + num_moments_; i < context->num_outputs(); i++)
      context->set_output(i, context->input(0));
    if (!num_moments_) return convolve({});
    const int64_t k = y.dim_size(3);
    Tensor* out[3];
    for (int i = 0; i < 3; i++)
      OP_REQUIRES_OK(context, context->allocate_output(1 + i, TensorShape({k}), &out[i]));
    batch_norm::Moments moments(static_cast<int>(k));
    convolve([&](size_t first, size_t pixels) { moments.add(data<T>(y), first + pixels); });
    moments.finish(data<T>(y), y.NumElements() / k, epsilon_, data(out[0]), data(out[1]), data(out[2]));
  }

 private:
  int num_moments_ = 0;
  float epsilon_ = 0;
};

// Checks that inputs [first, end) of a gradient, which are added to dx, have its shape.
Status check_others(OpKernelContext* context, int first, const TensorShape& shape) {
  for (int i = first; i < context->num_inputs(); i++)
    if (context->input(i).shape() != shape)
      return errors::InvalidArgument("the other gradient ", context->input(i).shape().DebugString(),
                                     " does not have the shape ", shape.DebugString());
  return absl::OkStatus();
}

// Adds inputs [first, end) to the pixels of dx that are done; empty if there are none.
template <typename T>
Done add_others(OpKernelContext* context, int first, Tensor* dx) {
  if (context->num_inputs() <= first) return {};
  return [=](size_t pixel, size_t pixels) {
    const size_t c = dx->dim_size(3);
    for (int i = first; i < context->num_inputs(); i++)
      batch_norm::add(data<T>(context->input(i)) + pixel * c, pixels * c, data<T>(dx) + pixel * c);
  };
}

}  // namespace
}  // namespace paceline
