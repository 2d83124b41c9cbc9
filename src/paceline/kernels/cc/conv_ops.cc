// Convolutions of any kernel size and stride as TensorFlow operations for CPUs. Each runs on the thread that calls it.
// What a person can get wrong (shapes, channels, empty images) is an InvalidArgument error, in the shape functions and
// at run time.
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "batch_norm.h"
#include "conv_extras.h"
#include "half_products.h"
#include "im2col.h"
#include "shape_functions.h"
#include "tensors.h"
#include "winograd.h"

namespace paceline {
namespace {

class Conv : public Kernel {
 public:
  explicit Conv(OpKernelConstruction* context) : Kernel(context) {
    std::string padding;
    OP_REQUIRES_OK(context, context->GetAttr("stride", &stride_));
    OP_REQUIRES_OK(context, context->GetAttr("padding", &padding));
    pads_ = padding == "SAME";
  }

 protected:
  Status check(const Tensor& x, const Tensor& filter) const {
    TF_RETURN_IF_ERROR(check_filter(filter, false));
    if (x.dtype() == tensorflow::DT_BFLOAT16 && filter.dim_size(2) % 2)
      return errors::InvalidArgument("input channels of bfloat16 must be even, not ", filter.dim_size(2));
    TF_RETURN_IF_ERROR(check_multiple_of_8({filter.dim_size(3)}));
    TF_RETURN_IF_ERROR(check_images("the input", x, filter.dim_size(2)));
    if (!pads_ && (x.dim_size(1) < filter.dim_size(0) || x.dim_size(2) < filter.dim_size(1)))
      return errors::InvalidArgument("images ", x.shape().DebugString(), " are smaller than the filter ",
                                     filter.shape().DebugString(), " without padding");
    return absl::OkStatus();
  }

  Status check_gradient(const Tensor& dy, const im2col::Shape& s) const {
    if (dy.shape() == TensorShape({s.n, s.oh, s.ow, s.k})) return absl::OkStatus();
    return errors::InvalidArgument("gradients ", dy.shape().DebugString(), " do not fit outputs ",
                                   TensorShape({s.n, s.oh, s.ow, s.k}).DebugString());
  }

  im2col::Shape shape(const Tensor& x, const Tensor& filter) const {
    const auto size = [](const Tensor& t, int i) { return static_cast<int>(t.dim_size(i)); };
    const int h = size(x, 1), w = size(x, 2), kh = size(filter, 0), kw = size(filter, 1);
    const int oh = (h - (pads_ ? 1 : kh)) / stride_ + 1, ow = (w - (pads_ ? 1 : kw)) / stride_ + 1;
    return {size(x, 0), h,  w,  size(x, 3), oh, ow, size(filter, 3), kh, kw, stride_,
            std::max(0, (oh - 1) * stride_ + kh - h) / 2, std::max(0, (ow - 1) * stride_ + kw - w) / 2};
  }

  int stride_;
  bool pads_;
};

// y of type U from x of type T.
template <typename T, typename U>
void convolve(const im2col::Shape& s, const Tensor& x, const Tensor& filter, Tensor* y, const Done& done) {
  if constexpr (std::is_same_v<T, Half>)
    half::forward(s, data<T>(x), data(filter), data<U>(y), done);
  else
    im2col::forward(s, data(x), data(filter), data(y), done);
}

template <typename T, typename U>
class ConvForward : public Conv {
 public:
  explicit ConvForward(OpKernelConstruction* context) : Conv(context), extras_(context) {}

  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check(x, filter));
    const im2col::Shape s = shape(x, filter);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, TensorShape({s.n, s.oh, s.ow, s.k}), &y), y));
    extras_.compute<U>(context, *y, [&](const Done& done) { convolve<T, U>(s, x, filter, y, done); });
  }

 private:
  Extras extras_;
};

// Inputs after the third are added to dx.
template <typename T>
class ConvInputGradient : public Conv {
 public:
  using Conv::Conv;

  void compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &filter = context->input(1), &x = context->input(2);
    OP_REQUIRES_OK(context, check(x, filter));
    OP_REQUIRES_OK(context, check_multiple_of_8({x.dim_size(3)}));
    const im2col::Shape s = shape(x, filter);
    OP_REQUIRES_OK(context, check_gradient(dy, s));
    OP_REQUIRES_OK(context, check_others(context, 3, x.shape()));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, x.shape(), &dx), dx));
    const Done done = add_others<T>(context, 3, dx);
    if constexpr (std::is_same_v<T, Half>)
      half::input_gradient(s, data<T>(dy), data(filter), data<T>(dx), done);
    else
      im2col::input_gradient(s, data(dy), data(filter), data(dx), done);
  }
};

template <typename T>
class ConvFilterGradient : public Conv {
 public:
  using Conv::Conv;

  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &dy = context->input(1), &filter = context->input(2);
    OP_REQUIRES_OK(context, check(x, filter));
    const im2col::Shape s = shape(x, filter);
    OP_REQUIRES_OK(context, check_gradient(dy, s));
    Tensor* dfilter = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, filter.shape(), &dfilter));
    if constexpr (std::is_same_v<T, Half>)
      half::filter_gradient(s, data<T>(x), data<T>(dy), data(dfilter));
    else
      im2col::filter_gradient(s, data(x), data(dy), data(dfilter));
  }
};

// A convolution of any kind with the norm after it, for inference.
template <typename T>
class ConvNormInference : public Conv {
 public:
  explicit ConvNormInference(OpKernelConstruction* context) : Conv(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES_OK(context, context->GetAttr("slope", &slope_));
  }

  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check(x, filter));
    const im2col::Shape s = shape(x, filter);
    const TensorShape output({s.n, s.oh, s.ow, s.k});
    for (int i = 2; i < context->num_inputs(); i++)
      OP_REQUIRES(context, context->input(i).shape() == (i < 6 ? TensorShape({s.k}) : output),
                  errors::InvalidArgument("input ", i, " is ", context->input(i).shape().DebugString(),
                                          ", which does not fit the output ", output.DebugString()));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, output, &y), y));
    std::vector<float> scale(s.k);
    batch_norm::scale(s.k, data(context->input(5)), epsilon_, scale.data());
    const T* residual = context->num_inputs() > 6 ? data<T>(context->input(6)) : nullptr;
    const auto norm = [&](size_t first, size_t pixels) {
      T* some = data<T>(y) + first * s.k;
      batch_norm::forward<T>({pixels, s.k}, some, residual ? residual + first * s.k : nullptr, slope_,
                             data(context->input(2)), data(context->input(3)), data(context->input(4)), scale.data(),
                             some);
    };
    if (s.kh == 3 && s.kw == 3 && s.stride == 1 && s.c % 8 == 0 && pads_)
      winograd::forward({s.n, s.h, s.w, s.c, s.k}, data<T>(x), data(filter), data<T>(y), norm);
    else
      convolve<T, T>(s, x, filter, y, norm);
  }

 private:
  float epsilon_, slope_;
};

}  // namespace

REGISTER_OP("PacelineConv")
    .Input("x: T")
    .Input("filter: float")
    .Output("y: U")
    .Output("moments: num_moments * float")  // mean, scale and variance of y, or none
    .Output("through: forks * T")
    .Attr("num_moments: int >= 0")
    .Attr("forks: int >= 0")
    .Attr("epsilon: float")
    .Attr("stride: int >= 1")
    .Attr("padding: {'SAME', 'VALID'} = 'SAME'")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .Attr("U: {float, bfloat16} = DT_FLOAT")  // of y
    .SetShapeFn(conv_shape);
REGISTER_OP("PacelineConvInputGradient")
    .Input("dy: T")
    .Input("filter: float")
    .Input("x: T")          // for its shape
    .Input("other: n * T")  // gradients to add
    .Output("dx: T")
    .Attr("n: int >= 0")
    .Attr("stride: int >= 1")
    .Attr("padding: {'SAME', 'VALID'} = 'SAME'")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(like_input(2, 4));
REGISTER_OP("PacelineConvFilterGradient")
    .Input("x: T")
    .Input("dy: T")
    .Input("filter: float")  // for its shape
    .Output("dfilter: float")
    .Attr("stride: int >= 1")
    .Attr("padding: {'SAME', 'VALID'} = 'SAME'")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(like_input(2, 4));
REGISTER_OP("PacelineConvNormInference")
    .Input("x: T")
    .Input("filter: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("variance: float")
    .Input("residual: n * T")
    .Output("y: T")
    .Attr("n: int >= 0")
    .Attr("stride: int >= 1")
    .Attr("padding: {'SAME', 'VALID'} = 'SAME'")
    .Attr("epsilon: float")
    .Attr("slope: float")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(conv_norm_shape);

#define REGISTER_CONV(type, y_type, ...)                                          \
  REGISTER_KERNEL_BUILDER(Name("PacelineConv")                                    \
                              .Device(tensorflow::DEVICE_CPU)                     \
                              .TypeConstraint<type>("T")                          \
                              .TypeConstraint<y_type>("U"),                       \
                          ConvForward<__VA_ARGS__>)
REGISTER_CONV(float, float, float, float);
REGISTER_CONV(tensorflow::bfloat16, float, Half, float);
REGISTER_CONV(tensorflow::bfloat16, tensorflow::bfloat16, Half, Half);
REGISTER_BOTH("PacelineConvInputGradient", ConvInputGradient);
REGISTER_BOTH("PacelineConvFilterGradient", ConvFilterGradient);
REGISTER_BOTH("PacelineConvNormInference", ConvNormInference);

}  // namespace paceline
