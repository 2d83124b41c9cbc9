// 3x3 convolutions with stride 1 as TensorFlow operations for CPUs. Each runs on the thread that calls it.
// What a person can get wrong (shapes, channels, empty images) is an InvalidArgument error, in the shape functions and
// at run time.
#include "batch_norm.h"
#include "conv_extras.h"
#include "shape_functions.h"
#include "tensors.h"
#include "winograd.h"

namespace paceline {
namespace {

winograd::Shape winograd_shape(const Tensor& images, int64_t c, int64_t k) {
  return {static_cast<int>(images.dim_size(0)), static_cast<int>(images.dim_size(1)),
          static_cast<int>(images.dim_size(2)), static_cast<int>(c), static_cast<int>(k)};
}

Status check_conv3x3(const Tensor& images, const Tensor& filter, int own) {
  TF_RETURN_IF_ERROR(check_filter(filter, true));
  TF_RETURN_IF_ERROR(check_multiple_of_8({filter.dim_size(2), filter.dim_size(3)}));
  return check_images("the input", images, filter.dim_size(own));
}

template <typename T>
class Conv3x3Forward : public Kernel {
 public:
  explicit Conv3x3Forward(OpKernelConstruction* context) : Kernel(context), extras_(context) {}

  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check_conv3x3(x, filter, 2));
    TensorShape shape = x.shape();
    shape.set_dim(3, filter.dim_size(3));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, shape, &y), y));
    const auto s = winograd_shape(x, filter.dim_size(2), filter.dim_size(3));
    extras_.compute<T>(context, *y, [&](const Done& done) {
      winograd::forward(s, data<T>(x), data(filter), data<T>(y), done);
    });
  }

 private:
  Extras extras_;
};

// With a third input, dx is the sum of the gradient and that.
template <typename T>
class Conv3x3InputGradient : public Kernel {
 public:
  using Kernel::Kernel;

  void compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check_conv3x3(dy, filter, 3));
    TensorShape shape = dy.shape();
    shape.set_dim(3, filter.dim_size(2));
    OP_REQUIRES_OK(context, check_others(context, 2, shape));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, shape, &dx), dx));
    const auto s = winograd_shape(dy, filter.dim_size(2), filter.dim_size(3));
    winograd::input_gradient(s, data<T>(dy), data(filter), data<T>(dx), add_others<T>(context, 2, dx));
  }
};

template <typename T>
class Conv3x3FilterGradient : public Kernel {
 public:
  using Kernel::Kernel;

  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &dy = context->input(1);
    for (const Tensor* each : {&x, &dy}) {
      const int64_t channels = each->dims() == 4 ? each->dim_size(3) : 0;
      OP_REQUIRES_OK(context, check_images("the input", *each, channels));
      OP_REQUIRES_OK(context, check_multiple_of_8({channels}));
    }
    OP_REQUIRES_OK(context, check_same_images(x, dy));
    const int64_t c = x.dim_size(3), k = dy.dim_size(3);
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({3, 3, c, k}), &out));
    winograd::filter_gradient(winograd_shape(x, c, k), data<T>(x), data<T>(dy), data(out));
  }
};

}  // namespace

REGISTER_OP("PacelineConv3x3")
    .Input("x: T")
    .Input("filter: float")
    .Output("y: T")
    .Output("moments: num_moments * float")  // mean, scale and variance of y, or none
    .Output("through: forks * T")
    .Attr("num_moments: int >= 0")
    .Attr("forks: int >= 0")
    .Attr("epsilon: float")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(conv3x3_forward_shape);
REGISTER_OP("PacelineConv3x3InputGradient")
    .Input("dy: T")
    .Input("filter: float")
    .Input("other: n * T")  // gradients to add
    .Output("dx: T")
    .Attr("n: int >= 0")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(conv3x3_input_gradient_shape);
REGISTER_OP("PacelineConv3x3FilterGradient")
    .Input("x: T")
    .Input("dy: T")
    .Output("dfilter: float")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(conv3x3_filter_shape);

REGISTER_BOTH("PacelineConv3x3", Conv3x3Forward);
REGISTER_BOTH("PacelineConv3x3InputGradient", Conv3x3InputGradient);
REGISTER_BOTH("PacelineConv3x3FilterGradient", Conv3x3FilterGradient);

}  // namespace paceline
