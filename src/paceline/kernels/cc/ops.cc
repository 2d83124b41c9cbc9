// The kernels as TensorFlow operations for CPUs. Each runs on the thread that calls it. What a person can get
// wrong (shapes, channels, empty images) is an InvalidArgument error, in the shape functions and at run time.
#include <algorithm>
#include <initializer_list>
#include <limits>

#include "batch_norm.h"
#include "im2col.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "winograd.h"

namespace paceline {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using Status = absl::Status;
namespace errors = tensorflow::errors;

// ---- shape functions ---------------------------------------------------------------------------------------------

// The input `index` as a shape of this rank.
Status shape_of(InferenceContext* c, int index, int rank, ShapeHandle* shape) {
  return c->WithRank(c->input(index), rank, shape);
}

Status multiple_of_8(InferenceContext* c, DimensionHandle dim) {
  if (c->ValueKnown(dim) && c->Value(dim) % 8)
    return errors::InvalidArgument("channels must be a multiple of 8, not ", c->Value(dim));
  return absl::OkStatus();
}

// y, dx: images in which the channels are replaced by dimension `channels` of the filter. `own` must be theirs.
Status conv3x3_shape(InferenceContext* c, int own, int channels) {
  ShapeHandle images, filter, out;
  DimensionHandle same;
  TF_RETURN_IF_ERROR(shape_of(c, 0, 4, &images));
  TF_RETURN_IF_ERROR(shape_of(c, 1, 4, &filter));
  for (int i = 0; i < 2; i++) TF_RETURN_IF_ERROR(c->WithValue(c->Dim(filter, i), 3, &same));
  for (int i = 2; i < 4; i++) TF_RETURN_IF_ERROR(multiple_of_8(c, c->Dim(filter, i)));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(images, 3), c->Dim(filter, own), &same));
  TF_RETURN_IF_ERROR(c->ReplaceDim(images, 3, c->Dim(filter, channels), &out));
  c->set_output(0, out);
  return absl::OkStatus();
}

Status conv3x3_filter_shape(InferenceContext* c) {
  ShapeHandle x, dy;
  DimensionHandle same;
  TF_RETURN_IF_ERROR(shape_of(c, 0, 4, &x));
  TF_RETURN_IF_ERROR(shape_of(c, 1, 4, &dy));
  for (int i = 0; i < 3; i++) TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, i), c->Dim(dy, i), &same));
  for (const auto& each : {x, dy}) TF_RETURN_IF_ERROR(multiple_of_8(c, c->Dim(each, 3)));
  c->set_output(0, c->MakeShape({3, 3, c->Dim(x, 3), c->Dim(dy, 3)}));
  return absl::OkStatus();
}

Status conv_shape(InferenceContext* c) {
  int stride;
  ShapeHandle x, filter;
  DimensionHandle same;
  TF_RETURN_IF_ERROR(c->GetAttr("stride", &stride));
  TF_RETURN_IF_ERROR(shape_of(c, 0, 4, &x));
  TF_RETURN_IF_ERROR(shape_of(c, 1, 4, &filter));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, 3), c->Dim(filter, 2), &same));
  TF_RETURN_IF_ERROR(multiple_of_8(c, c->Dim(filter, 3)));
  const auto strided = [&](int i) {
    const auto dim = c->Dim(x, i);
    return c->ValueKnown(dim) ? c->MakeDim((c->Value(dim) + stride - 1) / stride) : c->UnknownDim();
  };
  c->set_output(0, c->MakeShape({c->Dim(x, 0), strided(1), strided(2), c->Dim(filter, 3)}));
  return absl::OkStatus();
}

// The output has the shape of input `index`, of this rank.
auto like_input(int index, int rank) {
  return [=](InferenceContext* c) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(shape_of(c, index, rank, &shape));
    c->set_output(0, shape);
    return absl::OkStatus();
  };
}

// x [..., channels] is input `images`; inputs [from, to) are vectors of as many numbers.
Status norm_inputs(InferenceContext* c, int images, int from, int to, ShapeHandle* x,
                   ShapeHandle* vector) {
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(images), 2, x));
  if (!c->RankKnown(*x)) {
    *vector = c->Vector(c->UnknownDim());
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(multiple_of_8(c, c->Dim(*x, -1)));
  *vector = c->Vector(c->Dim(*x, -1));
  for (int i = from; i < to; i++) TF_RETURN_IF_ERROR(c->Merge(c->input(i), *vector, vector));
  return absl::OkStatus();
}

Status norm_shape(InferenceContext* c) {
  ShapeHandle x, vector;
  TF_RETURN_IF_ERROR(norm_inputs(c, 0, 1, 3, &x, &vector));
  for (int i = 3; i < c->num_inputs(); i++) TF_RETURN_IF_ERROR(c->Merge(x, c->input(i), &x));
  c->set_output(0, x);
  for (int i = 1; i < 4; i++) c->set_output(i, vector);
  return absl::OkStatus();
}

Status norm_inference_shape(InferenceContext* c) {
  ShapeHandle x, vector;
  TF_RETURN_IF_ERROR(norm_inputs(c, 0, 1, 5, &x, &vector));
  for (int i = 5; i < c->num_inputs(); i++) TF_RETURN_IF_ERROR(c->Merge(x, c->input(i), &x));
  c->set_output(0, x);
  return absl::OkStatus();
}

Status norm_gradient_shape(InferenceContext* c) {
  ShapeHandle x, vector;
  TF_RETURN_IF_ERROR(norm_inputs(c, 1, 2, 6, &x, &vector));
  TF_RETURN_IF_ERROR(c->Merge(x, c->input(0), &x));
  for (int i = 6; i < c->num_inputs(); i++) TF_RETURN_IF_ERROR(c->Merge(x, c->input(i), &x));
  c->set_output(0, x);
  c->set_output(1, vector);
  c->set_output(2, vector);
  for (int i = 3; i < c->num_outputs(); i++) c->set_output(i, x);
  return absl::OkStatus();
}

// ---- checks at run time ------------------------------------------------------------------------------------------

const float* data(const Tensor& t) { return t.flat<float>().data(); }
float* data(Tensor* t) { return t->flat<float>().data(); }

// Images [n, h, w, channels] that are not empty and whose rows and pixels can be counted in an int.
Status check_images(const char* name, const Tensor& images, int64_t channels) {
  if (images.dims() != 4 || images.NumElements() == 0)
    return errors::InvalidArgument(name, " must be images [n, height, width, channels] that are not empty, not ",
                                   images.shape().DebugString());
  if (images.dim_size(3) != channels)
    return errors::InvalidArgument(name, " has ", images.dim_size(3), " channels, the filter has ", channels);
  const int64_t pixels = images.dim_size(0) * (images.dim_size(1) + 4) * (images.dim_size(2) + 4);
  if (pixels >= std::numeric_limits<int>::max() / 2)
    return errors::InvalidArgument(name, " has too many pixels for one call: ", images.shape().DebugString());
  return absl::OkStatus();
}

Status check_multiple_of_8(std::initializer_list<int64_t> channels) {
  for (const int64_t each : channels)
    if (each <= 0 || each % 8)
      return errors::InvalidArgument("channels must be a positive multiple of 8, not ", each);
  return absl::OkStatus();
}

Status check_same_images(const Tensor& x, const Tensor& dy) {
  for (int i = 0; i < 3; i++)
    if (x.dim_size(i) != dy.dim_size(i))
      return errors::InvalidArgument("images ", x.shape().DebugString(), " and gradients ",
                                     dy.shape().DebugString(), " do not fit together");
  return absl::OkStatus();
}

Status check_filter(const Tensor& filter, bool is_3x3) {
  const bool fits = filter.dims() == 4 && filter.NumElements() > 0 &&
                    (!is_3x3 || (filter.dim_size(0) == 3 && filter.dim_size(1) == 3));
  if (!fits)
    return errors::InvalidArgument("the filter must be ", is_3x3 ? "[3, 3" : "[height, width",
                                   ", in, out] and not empty, not ", filter.shape().DebugString());
  return absl::OkStatus();
}

// ---- 3x3 convolutions, stride 1 ----------------------------------------------------------------------------------

winograd::Shape winograd_shape(const Tensor& images, int64_t c, int64_t k) {
  return {static_cast<int>(images.dim_size(0)), static_cast<int>(images.dim_size(1)),
          static_cast<int>(images.dim_size(2)), static_cast<int>(c), static_cast<int>(k)};
}

using Winograd = void (*)(const winograd::Shape&, const float*, const float*, float*);

// y from x, or dx from dy: OWN is the dimension of the filter that is the channels of the input, OTHER of the output.
template <Winograd kernel, int OWN, int OTHER>
class Conv3x3 : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &images = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check_filter(filter, true));
    OP_REQUIRES_OK(context, check_multiple_of_8({filter.dim_size(2), filter.dim_size(3)}));
    OP_REQUIRES_OK(context, check_images("the input", images, filter.dim_size(OWN)));
    TensorShape shape = images.shape();
    shape.set_dim(3, filter.dim_size(OTHER));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    kernel(winograd_shape(images, filter.dim_size(2), filter.dim_size(3)), data(images),
           data(filter), data(out));
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
  using Conv::Conv;

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &filter = context->input(1);
    OP_REQUIRES_OK(context, check(x, filter));
    const im2col::Shape s = shape(x, filter);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({s.n, s.oh, s.ow, s.k}), &y));
    im2col::forward(s, data(x), data(filter), data(y));
  }
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
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &dx));
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

// Inputs `vectors` have one number for each channel of x, inputs from `residual` on the shape of x.
Status check_norm(OpKernelContext* context, int images, std::initializer_list<int> vectors, int residual) {
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
  for (int i = residual; i < context->num_inputs(); i++)
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
  }

 protected:
  // The output takes the memory of the residual where nobody else needs that.
  Status allocate(OpKernelContext* context, int residual, Tensor** y) const {
    const TensorShape& shape = context->input(0).shape();
    if (context->num_inputs() > residual)
      return context->forward_input_or_allocate_output({residual}, 0, shape, y);
    return context->allocate_output(0, shape, y);
  }

  const float* residual(OpKernelContext* context, int index) const {
    return context->num_inputs() > index ? data(context->input(index)) : nullptr;
  }

  float epsilon_, slope_;
};

class NormTraining : public Norm {
 public:
  using Norm::Norm;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_norm(context, 0, {1, 2}, 3));
    const Tensor &x = context->input(0), &gamma = context->input(1), &beta = context->input(2);
    Tensor *y = nullptr, *mean = nullptr, *variance = nullptr, *scale = nullptr;
    OP_REQUIRES_OK(context, allocate(context, 3, &y));
    OP_REQUIRES_OK(context, context->allocate_output(1, gamma.shape(), &mean));
    OP_REQUIRES_OK(context, context->allocate_output(2, gamma.shape(), &variance));
    OP_REQUIRES_OK(context, context->allocate_output(3, gamma.shape(), &scale));
    batch_norm::moments(norm_rows(x), data(x), epsilon_, data(mean), data(scale), data(variance));
    batch_norm::forward(norm_rows(x), data(x), residual(context, 3), slope_, data(gamma),
                        data(beta), data(mean), data(scale), data(y));
  }
};

class NormInference : public Norm {
 public:
  using Norm::Norm;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_norm(context, 0, {1, 2, 3, 4}, 5));
    const Tensor &x = context->input(0), &gamma = context->input(1), &beta = context->input(2),
                 &mean = context->input(3), &variance = context->input(4);
    Tensor *y = nullptr, scale;
    OP_REQUIRES_OK(context, allocate(context, 5, &y));
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, gamma.shape(), &scale));
    batch_norm::scale(norm_rows(x).c, data(variance), epsilon_, data(&scale));
    batch_norm::forward(norm_rows(x), data(x), residual(context, 5), slope_, data(gamma),
                        data(beta), data(mean), data(scale), data(y));
  }
};

class NormGradient : public OpKernel {
 public:
  explicit NormGradient(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("slope", &slope_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_norm(context, 1, {2, 3, 4, 5}, 6));
    const Tensor &dy = context->input(0), &x = context->input(1), &gamma = context->input(2),
                 &beta = context->input(3), &mean = context->input(4), &scale = context->input(5);
    OP_REQUIRES(context, dy.shape() == x.shape(),
                errors::InvalidArgument("the gradient ", dy.shape().DebugString(),
                                        " does not have the shape of the input ", x.shape().DebugString()));
    const bool has_residual = context->num_inputs() > 6;
    Tensor *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr, *dresidual = nullptr;
    if (has_residual) {
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 3, x.shape(), &dresidual));
      OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &dx));
    } else {
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &dx));
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
    .SetShapeFn([](InferenceContext* c) { return conv3x3_shape(c, 2, 3); });
REGISTER_OP("PacelineConv3x3InputGradient")
    .Input("dy: float")
    .Input("filter: float")
    .Output("dx: float")
    .SetShapeFn([](InferenceContext* c) { return conv3x3_shape(c, 3, 2); });
REGISTER_OP("PacelineConv3x3FilterGradient")
    .Input("x: float")
    .Input("dy: float")
    .Output("dfilter: float")
    .SetShapeFn(conv3x3_filter_shape);
REGISTER_OP("PacelineConv")
    .Input("x: float")
    .Input("filter: float")
    .Output("y: float")
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
    .Output("y: float")
    .Output("mean: float")
    .Output("variance: float")
    .Output("scale: float")
    .Attr("n: int >= 0")
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

using Conv3x3Forward = Conv3x3<winograd::forward, 2, 3>;
using Conv3x3InputGradient = Conv3x3<winograd::input_gradient, 3, 2>;
REGISTER_CPU("PacelineConv3x3", Conv3x3Forward);
REGISTER_CPU("PacelineConv3x3InputGradient", Conv3x3InputGradient);
REGISTER_CPU("PacelineConv3x3FilterGradient", Conv3x3FilterGradient);
REGISTER_CPU("PacelineConv", ConvForward);
REGISTER_CPU("PacelineConvInputGradient", ConvInputGradient);
REGISTER_CPU("PacelineConvFilterGradient", ConvFilterGradient);
REGISTER_CPU("PacelineBatchNorm", NormTraining);
REGISTER_CPU("PacelineBatchNormInference", NormInference);
REGISTER_CPU("PacelineBatchNormGradient", NormGradient);

}  // namespace paceline
