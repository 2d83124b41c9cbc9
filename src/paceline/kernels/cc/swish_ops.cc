// Max-pooling, and z sigmoid(alpha z) after a bias or a batch normalisation, as TensorFlow operations for CPUs.
// Each runs on the thread that calls it. What a person can get wrong is an InvalidArgument error.
#include <algorithm>
#include <string>
#include <vector>

#include "batch_norm.h"
#include "pooling.h"
#include "swish.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensors.h"

namespace paceline {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// ---- shape functions ---------------------------------------------------------------------------------------------

// Pixels of the output along an axis, and how far the first window begins outside (as TensorFlow's SAME).
struct Windows {
  int64_t count, before;
  Windows(int64_t length, int size, int stride, bool same)
      : count(same ? (length + stride - 1) / stride : (length - size) / stride + 1),
        before(same ? std::max<int64_t>(0, (count - 1) * stride + size - length) / 2 : 0) {}
};

Status pool_shape(InferenceContext* c) {
  ShapeHandle x;
  int size, stride;
  std::string padding;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &x));
  TF_RETURN_IF_ERROR(c->GetAttr("size", &size));
  TF_RETURN_IF_ERROR(c->GetAttr("stride", &stride));
  TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
  const auto out = [&](int axis) {
    const auto known = c->Dim(x, axis);
    if (!c->ValueKnown(known)) return c->UnknownDim();
    return c->MakeDim(std::max<int64_t>(0, Windows(c->Value(known), size, stride, padding == "SAME").count));
  };
  c->set_output(0, c->MakeShape({c->Dim(x, 0), out(1), out(2), c->Dim(x, 3)}));
  return absl::OkStatus();
}

// Output i has the shape of input `inputs[i]`.
auto like_inputs(std::vector<int> inputs) {
  return [inputs](InferenceContext* c) {
    for (size_t i = 0; i < inputs.size(); i++) c->set_output(i, c->input(inputs[i]));
    return absl::OkStatus();
  };
}

swish::Shape rows_of(const Tensor& x) {
  const int64_t c = x.dim_size(x.dims() - 1);
  return {static_cast<size_t>(x.NumElements() / c), static_cast<int>(c)};
}

std::vector<float> to_float(const std::vector<double>& values) {
  return std::vector<float>(values.begin(), values.end());
}

// ---- max-pooling -------------------------------------------------------------------------------------------------

class Pool : public Kernel {
 public:
  explicit Pool(OpKernelConstruction* context) : Kernel(context) {
    std::string padding;
    OP_REQUIRES_OK(context, context->GetAttr("size", &size_));
    OP_REQUIRES_OK(context, context->GetAttr("stride", &stride_));
    OP_REQUIRES_OK(context, context->GetAttr("padding", &padding));
    OP_REQUIRES(context, size_ > 0 && stride_ > 0, errors::InvalidArgument("size and stride must be positive"));
    same_ = padding == "SAME";
  }

 protected:
  pooling::Shape shape_of(const Tensor& x) const {
    const Windows down(x.dim_size(1), size_, stride_, same_), right(x.dim_size(2), size_, stride_, same_);
    const auto dim = [&](int axis) { return static_cast<int>(x.dim_size(axis)); };
    return {dim(0), dim(1), dim(2), dim(3), size_, stride_, static_cast<int>(down.count),
            static_cast<int>(right.count), static_cast<int>(down.before), static_cast<int>(right.before)};
  }

  Status check(const Tensor& x) const {
    const int least = same_ ? 1 : size_;
    if (x.dims() != 4 || x.dim_size(1) < least || x.dim_size(2) < least)
      return errors::InvalidArgument("the input must be images of at least ", least, " x ", least, " pixels, not ",
                                     x.shape().DebugString());
    TF_RETURN_IF_ERROR(check_images("the input", x, x.dim_size(3)));
    return check_multiple_of_8({x.dim_size(3)});
  }

 private:
  int size_, stride_;
  bool same_;
};

template <typename T>
class MaxPool : public Pool {
 public:
  using Pool::Pool;

  void compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES_OK(context, check(x));
    const pooling::Shape s = shape_of(x);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({s.n, s.oh, s.ow, s.c}), &y));
    pooling::forward(s, data<T>(x), data<T>(y));
  }
};

template <typename T>
class MaxPoolGradient : public Pool {
 public:
  using Pool::Pool;

  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &dy = context->input(1);
    OP_REQUIRES_OK(context, check(x));
    const pooling::Shape s = shape_of(x);
    const TensorShape shape({s.n, s.oh, s.ow, s.c});
    OP_REQUIRES(context, dy.shape() == shape,
                errors::InvalidArgument("the gradient must be ", shape.DebugString(), ", not ",
                                        dy.shape().DebugString()));
    Tensor* dx = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &dx));
    pooling::backward(s, data<T>(x), data<T>(dy), data<T>(dx));
  }
};

// ---- act(factor x + offset) --------------------------------------------------------------------------------------

class WithAlpha : public Kernel {
 public:
  explicit WithAlpha(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("alpha", &alpha_));
  }

 protected:
  float alpha_;
};

class Swish : public WithAlpha {
 public:
  using WithAlpha::WithAlpha;

  void compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rows(context, 0, {1, 2}, 0, 0));
    const Tensor &x = context->input(0), &factor = context->input(1), &offset = context->input(2);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    swish::forward(rows_of(x), data(x), alpha_, data(factor), data(offset), data(y));
  }
};

class SwishGradient : public WithAlpha {
 public:
  using WithAlpha::WithAlpha;

  void compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rows(context, 1, {2, 3}, 0, 1));
    const Tensor &dy = context->input(0), &x = context->input(1), &factor = context->input(2),
                 &offset = context->input(3);
    Tensor *dx = nullptr, *dfactor = nullptr, *doffset = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, factor.shape(), &dfactor));
    OP_REQUIRES_OK(context, context->allocate_output(2, factor.shape(), &doffset));
    const swish::Shape s = rows_of(x);
    const std::vector<float> zeros(s.c);
    std::vector<double> sum(s.c), product(s.c);
    swish::backward(s, data(dy), data(x), alpha_, data(factor), data(offset), zeros.data(), data(dx), sum.data(),
                    product.data());
    for (int i = 0; i < s.c; i++) {
      data(dfactor)[i] = static_cast<float>(product[i]);
      data(doffset)[i] = static_cast<float>(sum[i]);
    }
    swish::combine(s, data(dx), data(x), data(factor), zeros.data(), zeros.data(), data(dx));
  }
};

// ---- act(batch_norm(x)) ------------------------------------------------------------------------------------------

using batch_norm::Affine;

class NormSwish : public WithAlpha {
 public:
  explicit NormSwish(OpKernelConstruction* context) : WithAlpha(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
  }

  void compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rows(context, 0, {1, 2}, 0, 0));
    const Tensor &x = context->input(0), &gamma = context->input(1), &beta = context->input(2);
    Tensor *y = nullptr, *mean = nullptr, *variance = nullptr, *scale = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));
    OP_REQUIRES_OK(context, context->allocate_output(1, gamma.shape(), &mean));
    OP_REQUIRES_OK(context, context->allocate_output(2, gamma.shape(), &variance));
    OP_REQUIRES_OK(context, context->allocate_output(3, gamma.shape(), &scale));
    const swish::Shape s = rows_of(x);
    batch_norm::Moments(s.c).finish(data(x), s.rows, epsilon_, data(mean), data(scale), data(variance));
    const Affine affine(s.c, data(gamma), data(beta), data(mean), data(scale));
    swish::forward(s, data(x), alpha_, affine.factor.data(), affine.offset.data(), data(y));
  }

 private:
  float epsilon_;
};

class NormSwishGradient : public WithAlpha {
 public:
  using WithAlpha::WithAlpha;

  void compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rows(context, 1, {2, 3, 4, 5}, 0, 1));
    const Tensor &dy = context->input(0), &x = context->input(1), &gamma = context->input(2),
                 &beta = context->input(3), &mean = context->input(4), &scale = context->input(5);
    Tensor *dx = nullptr, *dgamma = nullptr, *dbeta = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, gamma.shape(), &dgamma));
    OP_REQUIRES_OK(context, context->allocate_output(2, gamma.shape(), &dbeta));
    const swish::Shape s = rows_of(x);
    const Affine affine(s.c, data(gamma), data(beta), data(mean), data(scale));
    std::vector<double> sum(s.c), product(s.c), of_x(s.c), constant(s.c);
    swish::backward(s, data(dy), data(x), alpha_, affine.factor.data(), affine.offset.data(), data(mean), data(dx),
                    sum.data(), product.data());
    const double n = static_cast<double>(s.rows);
    for (int i = 0; i < s.c; i++) {
      const double f = affine.factor[i], one = data(scale)[i];
      data(dbeta)[i] = static_cast<float>(sum[i]);
      data(dgamma)[i] = static_cast<float>(product[i] * one);
      of_x[i] = -f * one * one * product[i] / n;
      constant[i] = -f * sum[i] / n - of_x[i] * data(mean)[i];
    }
    swish::combine(s, data(dx), data(x), affine.factor.data(), to_float(of_x).data(), to_float(constant).data(),
                   data(dx));
  }
};

}  // namespace

// ---- registration ------------------------------------------------------------------------------------------------

REGISTER_OP("PacelineMaxPool")
    .Input("x: T")
    .Output("y: T")
    .Attr("size: int = 2")
    .Attr("stride: int = 2")
    .Attr("padding: {'SAME', 'VALID'} = 'VALID'")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(pool_shape);
REGISTER_OP("PacelineMaxPoolGradient")
    .Input("x: T")
    .Input("dy: T")
    .Output("dx: T")
    .Attr("size: int = 2")
    .Attr("stride: int = 2")
    .Attr("padding: {'SAME', 'VALID'} = 'VALID'")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(like_inputs({0}));
REGISTER_OP("PacelineSwish")
    .Input("x: float")
    .Input("factor: float")
    .Input("offset: float")
    .Output("y: float")
    .Attr("alpha: float")
    .SetShapeFn(like_inputs({0}));
REGISTER_OP("PacelineSwishGradient")
    .Input("dy: float")
    .Input("x: float")
    .Input("factor: float")
    .Input("offset: float")
    .Output("dx: float")
    .Output("dfactor: float")
    .Output("doffset: float")
    .Attr("alpha: float")
    .SetShapeFn(like_inputs({1, 2, 3}));
REGISTER_OP("PacelineNormSwish")
    .Input("x: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Output("y: float")
    .Output("mean: float")
    .Output("variance: float")
    .Output("scale: float")
    .Attr("epsilon: float")
    .Attr("alpha: float")
    .SetShapeFn(like_inputs({0, 1, 1, 1}));
REGISTER_OP("PacelineNormSwishGradient")
    .Input("dy: float")
    .Input("x: float")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("scale: float")
    .Output("dx: float")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Attr("alpha: float")
    .SetShapeFn(like_inputs({1, 2, 3}));

REGISTER_BOTH("PacelineMaxPool", MaxPool);
REGISTER_BOTH("PacelineMaxPoolGradient", MaxPoolGradient);
REGISTER_CPU("PacelineSwish", Swish);
REGISTER_CPU("PacelineSwishGradient", SwishGradient);
REGISTER_CPU("PacelineNormSwish", NormSwish);
REGISTER_CPU("PacelineNormSwishGradient", NormSwishGradient);

}  // namespace paceline
