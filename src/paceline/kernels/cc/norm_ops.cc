// Batch normalisation with what follows it as TensorFlow operations for CPUs. Each runs on the thread that calls it.
// What a person can get wrong (shapes, channels, empty images) is an InvalidArgument error, in the shape functions and
// at run time.
#include "batch_norm.h"
#include "shape_functions.h"
#include "tensors.h"

namespace paceline {
namespace {

batch_norm::Shape norm_rows(const Tensor& x) {
  const int64_t c = x.dim_size(x.dims() - 1);
  return {static_cast<size_t>(x.NumElements() / c), static_cast<int>(c)};
}

template <typename T>
class Norm : public Kernel {
 public:
  explicit Norm(OpKernelConstruction* context) : Kernel(context) {
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

  const T* residual(OpKernelContext* context, int index) const {
    return residuals_ ? data<T>(context->input(index)) : nullptr;
  }

  float epsilon_, slope_;
  int residuals_;
};

template <typename T>
class NormTraining : public Norm<T> {
 public:
  using Norm<T>::Norm;

  void compute(OpKernelContext* context) override {
    const int moments = 3 + this->residuals_;
    OP_REQUIRES_OK(context, check_rows(context, 0, {1, 2}, 3, moments));
    const Tensor &x = context->input(0), &gamma = context->input(1), &beta = context->input(2);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, in_huge_pages(this->allocate(context, 3, &y), y));
    Tensor statistics[3];  // mean, scale, variance
    if (context->num_inputs() > moments) {
      OP_REQUIRES(context, context->num_inputs() == moments + 3,
                  errors::InvalidArgument("moments must be 3 vectors or none"));
      OP_REQUIRES_OK(context, check_rows(context, 0, {moments, moments + 1, moments + 2}, 3, 3));
      for (int i = 0; i < 3; i++) statistics[i] = context->input(moments + i);
    } else {
      for (Tensor& each : statistics)
        OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, gamma.shape(), &each));
      batch_norm::Moments(norm_rows(x).c)
          .finish(data<T>(x), norm_rows(x).rows, this->epsilon_, data(&statistics[0]), data(&statistics[1]),
                  data(&statistics[2]));
    }
    for (int i = 0; i < 3; i++) context->set_output(1 + i, statistics[i]);
    batch_norm::forward(norm_rows(x), data<T>(x), this->residual(context, 3), this->slope_, data(gamma), data(beta),
                        data(statistics[0]), data(statistics[1]), data<T>(y));
  }
};

template <typename T>
class NormInference : public Norm<T> {
 public:
  using Norm<T>::Norm;

  void compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rows(context, 0, {1, 2, 3, 4}, 5, context->num_inputs()));
    const Tensor &x = context->input(0), &gamma = context->input(1), &beta = context->input(2),
                 &mean = context->input(3), &variance = context->input(4);
    Tensor *y = nullptr, scale;
    OP_REQUIRES_OK(context, in_huge_pages(this->allocate(context, 5, &y), y));
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, gamma.shape(), &scale));
    batch_norm::scale(norm_rows(x).c, data(variance), this->epsilon_, data(&scale));
    batch_norm::forward(norm_rows(x), data<T>(x), this->residual(context, 5), this->slope_, data(gamma), data(beta),
                        data(mean), data(scale), data<T>(y));
  }
};

template <typename T>
class NormGradient : public Kernel {
 public:
  explicit NormGradient(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("slope", &slope_));
  }

  void compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rows(context, 1, {2, 3, 4, 5}, 6, context->num_inputs()));
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
    batch_norm::backward<T>(norm_rows(x), data<T>(dy), data<T>(x),
                            has_residual ? data<T>(context->input(6)) : nullptr, slope_, data(gamma), data(beta),
                            data(mean), data(scale), data<T>(dx), has_residual ? data<T>(dresidual) : nullptr,
                            data(dgamma), data(dbeta));
  }

 private:
  float slope_;
};

}  // namespace

REGISTER_OP("PacelineBatchNorm")
    .Input("x: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("residual: n * T")
    .Input("moments: num_moments * float")  // of x, if the convolution before has them already
    .Output("y: T")
    .Output("mean: float")
    .Output("scale: float")
    .Output("variance: float")
    .Attr("n: int >= 0")
    .Attr("num_moments: int >= 0")
    .Attr("epsilon: float")
    .Attr("slope: float")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(norm_shape);
REGISTER_OP("PacelineBatchNormInference")
    .Input("x: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("variance: float")
    .Input("residual: n * T")
    .Output("y: T")
    .Attr("n: int >= 0")
    .Attr("epsilon: float")
    .Attr("slope: float")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(norm_inference_shape);
REGISTER_OP("PacelineBatchNormGradient")
    .Input("dy: T")
    .Input("x: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Input("mean: float")
    .Input("scale: float")
    .Input("y: n * T")  // with a residual only
    .Output("dx: T")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Output("dresidual: n * T")
    .Attr("n: int >= 0")
    .Attr("slope: float")
    .Attr("T: {float, bfloat16} = DT_FLOAT")  // of images
    .SetShapeFn(norm_gradient_shape);

REGISTER_BOTH("PacelineBatchNorm", NormTraining);
REGISTER_BOTH("PacelineBatchNormInference", NormInference);
REGISTER_BOTH("PacelineBatchNormGradient", NormGradient);

}  // namespace paceline
