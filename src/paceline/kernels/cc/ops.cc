// The kernels as TensorFlow operations for CPUs. Each runs on the thread that calls it. What a person can get
// wrong (shapes, channels, empty images) is an InvalidArgument error, in the shape functions and at run time.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <vector>

#include "batch_norm.h"
#include "im2col.h"
#include "shape_functions.h"
#include "tensors.h"
#include "winograd.h"

namespace paceline {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;

// ---- 3x3 convolutions, stride 1 ----------------------------------------------------------------------------------

winograd::Shape winograd_shape(const Tensor& images, int64_t c, int64_t k) {
  return {static_cast<int>(images.dim_size(0)), static_cast<int>(images.dim_size(1)),
          static_cast<int>(images.dim_size(2)), static_cast<int>(c), static_cast<int>(k)};
}

Status check_conv3x3(const Tensor& images, const Tensor& filter, int own) {
  TF_RETURN_IF_ERROR(check_filter(filter, true));
  TF_RETURN_IF_ERROR(check_multiple_of_8({filter.dim_size(2), filter.dim_size(3)}));
  return check_images("the input", images, filter.dim_size(own));
}

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

  // Calls convolve(done) and writes the outputs.
  template <typename F>
  void compute(OpKernelContext* context, const Tensor& y, F convolve) const {
    for (int i = 1 + num_moments_; i < context->num_outputs(); i++)
      context->set_output(i, context->input(0));
    if (!num_moments_) return convolve({});
    const int64_t k = y.dim_size(3);
    Tensor* out[3];
    for (int i = 0; i < 3; i++)
      OP_REQUIRES_OK(context, context->allocate_output(1 + i, TensorShape({k}), &out[i]));
    batch_norm::Moments moments(static_cast<int>(k));
    convolve([&](size_t first, size_t pixels) { moments.add(data(y) + first * k, pixels); });
    moments.finish(epsilon_, data(out[0]), data(out[1]), data(out[2]));
  }

 private:
  int num_moments_ = 0;
  float epsilon_ = 0;
};

class Conv3x3Forward : public OpKernel {
 public:
  explicit Conv3x3Forward(OpKernelConstruction* context) : OpKernel(context), extras_(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check_conv3x3(x, filter, 2));
    TensorShape shape = x.shape();
    shape.set_dim(3, filter.dim_size(3));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, shape, &y), y));
    const auto s = winograd_shape(x, filter.dim_size(2), filter.dim_size(3));
    extras_.compute(context, *y, [&](const Done& done) {
      winograd::forward(s, data(x), data(filter), data(y), done);
    });
  }

 private:
  Extras extras_;
};

// With a third input, dx is the sum of the gradient and that.
class Conv3x3InputGradient : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check_conv3x3(dy, filter, 3));
    TensorShape shape = dy.shape();
    shape.set_dim(3, filter.dim_size(2));
    for (int i = 2; i < context->num_inputs(); i++)
      OP_REQUIRES(context, context->input(i).shape() == shape,
                  errors::InvalidArgument("the other gradient ", context->input(i).shape().DebugString(),
                                          " does not have the shape ", shape.DebugString()));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, shape, &dx), dx));
    const auto s = winograd_shape(dy, filter.dim_size(2), filter.dim_size(3));
    const auto add = [&](size_t first, size_t pixels) {
      for (int i = 2; i < context->num_inputs(); i++)
        batch_norm::add(data(context->input(i)) + first * s.c, pixels * s.c, data(dx) + first * s.c);
    };
    winograd::input_gradient(s, data(dy), data(filter), data(dx),
                             context->num_inputs() > 2 ? Done(add) : Done());
  }
};

class Conv3x3FilterGradient : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
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
    winograd::filter_gradient(winograd_shape(x, c, k), data(x), data(dy), data(out));
  }
};

// ---- other convolutions ------------------------------------------------------------------------------------------

class Conv : public OpKernel {
 public:
  explicit Conv(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("stride", &stride_));
  }

 protected:
  Status check(const Tensor& x, const Tensor& filter) const {
    TF_RETURN_IF_ERROR(check_filter(filter, false));
    TF_RETURN_IF_ERROR(check_multiple_of_8({filter.dim_size(3)}));
    return check_images("the input", x, filter.dim_size(2));
  }

  Status check_gradient(const Tensor& dy, const im2col::Shape& s) const {
    if (dy.shape() == TensorShape({s.n, s.oh, s.ow, s.k})) return absl::OkStatus();
    return errors::InvalidArgument("gradients ", dy.shape().DebugString(), " do not fit outputs ",
                                   TensorShape({s.n, s.oh, s.ow, s.k}).DebugString());
  }

  im2col::Shape shape(const Tensor& x, const Tensor& filter) const {
    const auto size = [](const Tensor& t, int i) { return static_cast<int>(t.dim_size(i)); };
    const int h = size(x, 1), w = size(x, 2), kh = size(filter, 0), kw = size(filter, 1);
    const int oh = (h + stride_ - 1) / stride_, ow = (w + stride_ - 1) / stride_;
    return {size(x, 0), h,  w,  size(x, 3), oh, ow, size(filter, 3), kh, kw, stride_,
            std::max(0, (oh - 1) * stride_ + kh - h) / 2, std::max(0, (ow - 1) * stride_ + kw - w) / 2};
  }

  int stride_;
};

class ConvForward : public Conv {
 public:
  explicit ConvForward(OpKernelConstruction* context) : Conv(context), extras_(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check(x, filter));
    const im2col::Shape s = shape(x, filter);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, TensorShape({s.n, s.oh, s.ow, s.k}), &y), y));
    extras_.compute(context, *y, [&](const Done& done) {
      im2col::forward(s, data(x), data(filter), data(y), done);
    });
  }

 private:
  Extras extras_;
};

class ConvInputGradient : public Conv {
 public:
  using Conv::Conv;

  void Compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &filter = context->input(1), &x = context->input(2);
    OP_REQUIRES_OK(context, check(x, filter));
    OP_REQUIRES_OK(context, check_multiple_of_8({x.dim_size(3)}));
    const im2col::Shape s = shape(x, filter);
    OP_REQUIRES_OK(context, check_gradient(dy, s));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, x.shape(), &dx), dx));
    im2col::input_gradient(s, data(dy), data(filter), data(dx));
  }
};

class ConvFilterGradient : public Conv {
 public:
  using Conv::Conv;

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &dy = context->input(1), &filter = context->input(2);
    OP_REQUIRES_OK(context, check(x, filter));
    const im2col::Shape s = shape(x, filter);
    OP_REQUIRES_OK(context, check_gradient(dy, s));
    Tensor* dfilter = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, filter.shape(), &dfilter));
    im2col::filter_gradient(s, data(x), data(dy), data(dfilter));
  }
};

// ---- batch normalisation -----------------------------------------------------------------------------------------

// Inputs `vectors` have one number for each channel of x, inputs [residual, end) the shape of x.
Status check_norm(OpKernelContext* context, int images, std::initializer_list<int> vectors, int residual,
                  int end) {
  const Tensor& x = context->input(images);
  if (x.dims() < 2 || x.NumElements() == 0)
    return errors::InvalidArgument("the input must be [..., channels] and not empty, not ", x.shape().DebugString());
  const int64_t channels = x.dim_size(x.dims() - 1);
  TF_RETURN_IF_ERROR(check_multiple_of_8({channels}));
  if (channels >= std::numeric_limits<int>::max() / 64)
    return errors::InvalidArgument("too many channels: ", channels);
  for (const int i : vectors)
    if (context->input(i).shape() != TensorShape({channels}))
      return errors::InvalidArgument("gamma, beta and statistics must be [", channels, "], not ",
                                     context->input(i).shape().DebugString());
  for (int i = residual; i < end; i++)
    if (context->input(i).shape() != x.shape())
      return errors::InvalidArgument("the residual ", context->input(i).shape().DebugString(),
                                     " does not have the shape of the input ", x.shape().DebugString());
  return absl::OkStatus();
}

batch_norm::Shape norm_rows(const Tensor& x) {
  const int64_t c = x.dim_size(x.dims() - 1);
  return {static_cast<size_t>(x.NumElements() / c), static_cast<int>(c)};
}

class Norm : public OpKernel {
 public:
  explicit Norm(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES_OK(context, context->GetAttr("slope", &slope_));
    OP_REQUIRES_OK(context, context->GetAttr("n", &residuals_));
    OP_REQUIRES(context, residuals_ <= 1, errors::InvalidArgument("at most one residual, not ", residuals_));
  }

 protected:
  // The output takes the memory of the residual where nobody else needs that.
  Status allocate(OpKernelContext* context, int residual, Tensor** y) const {
    const TensorShape& shape = context->input(0).shape();
    if (residuals_) return context->forward_input_or_allocate_output({residual}, 0, shape, y);
    return context->allocate_output(0, shape, y);
  }

  const float* residual(OpKernelContext* context, int index) const {
    return residuals_ ? data(context->input(index)) : nullptr;
  }

  float epsilon_, slope_;
  int residuals_;
};

class NormTraining : public Norm {
 public:
  using Norm::Norm;

  void Compute(OpKernelContext* context) override {
    const int moments = 3 + residuals_;
    OP_REQUIRES_OK(context, check_norm(context, 0, {1, 2}, 3, moments));
    const Tensor &x = context->input(0), &gamma = context->input(1), &beta = context->input(2);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(allocate(context, 3, &y), y));
    Tensor statistics[3];  // mean, scale, variance
    if (context->num_inputs() > moments) {
      OP_REQUIRES(context, context->num_inputs() == moments + 3,
                  errors::InvalidArgument("moments must be 3 vectors or none"));
      OP_REQUIRES_OK(context, check_norm(context, 0, {moments, moments + 1, moments + 2}, 3, 3));
      for (int i = 0; i < 3; i++) statistics[i] = context->input(moments + i);
    } else {
      for (Tensor& each : statistics)
        OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, gamma.shape(), &each));
      batch_norm::Moments found(norm_rows(x).c);
      found.add(data(x), norm_rows(x).rows);
      found.finish(epsilon_, data(&statistics[0]), data(&statistics[1]), data(&statistics[2]));
    }
    for (int i = 0; i < 3; i++) context->set_output(1 + i, statistics[i]);
    batch_norm::forward(norm_rows(x), data(x), residual(context, 3), slope_, data(gamma),
                        data(beta), data(statistics[0]), data(statistics[1]), data(y));
  }
};

class NormInference : public Norm {
 public:
  using Norm::Norm;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_norm(context, 0, {1, 2, 3, 4}, 5, context->num_inputs()));
    const Tensor &x = context->input(0), &gamma = context->input(1), &beta = context->input(2),
                 &mean = context->input(3), &variance = context->input(4);
    Tensor *y = nullptr, scale;
    OP_REQUIRES_OK(context, in_huge_pages(allocate(context, 5, &y), y));
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, gamma.shape(), &scale));
    batch_norm::scale(norm_rows(x).c, data(variance), epsilon_, data(&scale));
    batch_norm::forward(norm_rows(x), data(x), residual(context, 5), slope_, data(gamma),
                        data(beta), data(mean), data(scale), data(y));
  }
};

// A convolution of any kind with the norm after it, for inference.
class ConvNormInference : public Conv {
 public:
  explicit ConvNormInference(OpKernelConstruction* context) : Conv(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES_OK(context, context->GetAttr("slope", &slope_));
  }

  void Compute(OpKernelContext* context) override {
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
    const float* residual = context->num_inputs() > 6 ? data(context->input(6)) : nullptr;
    const auto norm = [&](size_t first, size_t pixels) {
      float* some = data(y) + first * s.k;
      batch_norm::forward({pixels, s.k}, some, residual ? residual + first * s.k : nullptr, slope_,
                          data(context->input(2)), data(context->input(3)), data(context->input(4)),
                          scale.data(), some);
    };
    if (s.kh == 3 && s.kw == 3 && s.stride == 1 && s.c % 8 == 0)
      winograd::forward({s.n, s.h, s.w, s.c, s.k}, data(x), data(filter), data(y), norm);
    else
      im2col::forward(s, data(x), data(filter), data(y), norm);
  }

 private:
  float epsilon_, slope_;
};

class NormGradient : public OpKernel {
 public:
  explicit NormGradient(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("slope", &slope_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_norm(context, 1, {2, 3, 4, 5}, 6, context->num_inputs()));
    const Tensor &dy = context->input(0), &x = context->input(1), &gamma = context->input(2),
                 &beta = context->input(3), &mean = context->input(4), &scale = context->input(5);
    OP_REQUIRES(context, dy.shape() == x.shape(),
                errors::InvalidArgument("the gradient ", dy.shape().DebugString(),
                                        " does not have the shape of the input ", x.shape().DebugString()));
    const bool has_residual = context->num_inputs() > 6;
    Tensor *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr, *dresidual = nullptr;
    if (has_residual) {
      OP_REQUIRES_OK(context,
                     in_huge_pages(context->forward_input_or_allocate_output({0}, 3, x.shape(), &dresidual),
                                   dresidual));
      OP_REQUIRES_OK(context, in_huge_pages(context->allocate_output(0, x.shape(), &dx), dx));
    } else {
      OP_REQUIRES_OK(context, in_huge_pages(context->forward_input_or_allocate_output({0}, 0, x.shape(), &dx), dx));
    }
    OP_REQUIRES_OK(context, context->allocate_output(1, gamma.shape(), &dgamma));
    OP_REQUIRES_OK(context, context->allocate_output(2, gamma.shape(), &dbeta));
    batch_norm::backward(norm_rows(x), data(dy), data(x), has_residual ? data(context->input(6)) : nullptr,
                         slope_, data(gamma), data(beta), data(mean), data(scale), data(dx),
                         has_residual ? data(dresidual) : nullptr, data(dgamma), data(dbeta));
  }

 private:
  float slope_;
};

}  // namespace

// ---- registration ------------------------------------------------------------------------------------------------

REGISTER_OP("PacelineConv3x3")
    .Input("x: float")
    .Input("filter: float")
    .Output("y: float")
    .Output("moments: num_moments * float")  // mean, scale and variance of y, or none
    .Output("through: forks * float")
    .Attr("num_moments: int >= 0")
    .Attr("forks: int >= 0")
    .Attr("epsilon: float")
    .SetShapeFn(conv3x3_forward_shape);
REGISTER_OP("PacelineConv3x3InputGradient")
    .Input("dy: float")
    .Input("filter: float")
    .Input("other: n * float")  // gradients to add
    .Output("dx: float")
    .Attr("n: int >= 0")
    .SetShapeFn(conv3x3_input_gradient_shape);
REGISTER_OP("PacelineConv3x3FilterGradient")
    .Input("x: float")
    .Input("dy: float")
    .Output("dfilter: float")
    .SetShapeFn(conv3x3_filter_shape);
REGISTER_OP("PacelineConv")
    .Input("x: float")
    .Input("filter: float")
    .Output("y: float")
    .Output("moments: num_moments * float")  // mean, scale and variance of y, or none
    .Attr("num_moments: int >= 0")
    .Attr("epsilon: float")
    .Attr("stride: int >= 1")
    .SetShapeFn(conv_shape);
REGISTER_OP("PacelineConvInputGradient")
    .Input("dy: float")
    .Input("filter: float")
    .Input("x: float")  // for its shape
    .Output("dx: float")
    .Attr("stride: int >= 1")
    .SetShapeFn(like_input(2, 4));
REGISTER_OP("PacelineConvFilterGradient")
    .Input("x: float")
    .Input("dy: float")
    .Input("filter: float")  // for its shape
    .Output("dfilter: float")
    .Attr("stride: int >= 1")
    .SetShapeFn(like_input(2, 4));
REGISTER_OP("PacelineBatchNorm")
    .Input("x: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("residual: n * float")
    .Input("moments: num_moments * float")  // of x, if the convolution before has them already
    .Output("y: float")
    .Output("mean: float")
    .Output("scale: float")
    .Output("variance: float")
    .Attr("n: int >= 0")
    .Attr("num_moments: int >= 0")
    .Attr("epsilon: float")
    .Attr("slope: float")
    .SetShapeFn(norm_shape);
REGISTER_OP("PacelineBatchNormInference")
    .Input("x: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("variance: float")
    .Input("residual: n * float")
    .Output("y: float")
    .Attr("n: int >= 0")
    .Attr("epsilon: float")
    .Attr("slope: float")
    .SetShapeFn(norm_inference_shape);
REGISTER_OP("PacelineConvNormInference")
    .Input("x: float")
    .Input("filter: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("variance: float")
    .Input("residual: n * float")
    .Output("y: float")
    .Attr("n: int >= 0")
    .Attr("stride: int >= 1")
    .Attr("epsilon: float")
    .Attr("slope: float")
    .SetShapeFn(conv_norm_shape);
REGISTER_OP("PacelineBatchNormGradient")
    .Input("dy: float")
    .Input("x: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("scale: float")
    .Input("y: n * float")  // with a residual only
    .Output("dx: float")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Output("dresidual: n * float")
    .Attr("n: int >= 0")
    .Attr("slope: float")
    .SetShapeFn(norm_gradient_shape);

#define REGISTER_CPU(name, ...) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), __VA_ARGS__)

REGISTER_CPU("PacelineConv3x3", Conv3x3Forward);
REGISTER_CPU("PacelineConv3x3InputGradient", Conv3x3InputGradient);
REGISTER_CPU("PacelineConv3x3FilterGradient", Conv3x3FilterGradient);
REGISTER_CPU("PacelineConv", ConvForward);
REGISTER_CPU("PacelineConvInputGradient", ConvInputGradient);
REGISTER_CPU("PacelineConvFilterGradient", ConvFilterGradient);
REGISTER_CPU("PacelineBatchNorm", NormTraining);
REGISTER_CPU("PacelineBatchNormInference", NormInference);
REGISTER_CPU("PacelineConvNormInference", ConvNormInference);
REGISTER_CPU("PacelineBatchNormGradient", NormGradient);

}  // namespace paceline
