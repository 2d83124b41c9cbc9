// Elementwise arithmetic, sums and the cross-entropy as TensorFlow operations for CPUs.
#include <string>
#include <vector>

#include "arithmetic.h"
#include "batch_norm.h"
#include "half_products.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensors.h"

namespace paceline {
namespace {

// ---- elementwise -------------------------------------------------------------------------------------------------

// A run of axes along which each operand is either whole or repeated.
struct Axes {
  int64_t size;
  bool a_steps, b_steps;
};

int64_t dim(const Tensor& t, int from_last) {
  return from_last < t.dims() ? t.dim_size(t.dims() - 1 - from_last) : 1;
}

class Binary : public Kernel {
 public:
  explicit Binary(OpKernelConstruction* context) : Kernel(context) {
    std::string kind;
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    kind_ = kind == "add"        ? arithmetic::ADD
            : kind == "subtract" ? arithmetic::SUBTRACT
            : kind == "multiply" ? arithmetic::MULTIPLY
            : kind == "divide"   ? arithmetic::DIVIDE
                                 : arithmetic::WHERE_POSITIVE;
  }

  void compute(OpKernelContext* context) override {
    const Tensor &a = context->input(0), &b = context->input(1);
    std::vector<Axes> axes;  // the last ones first
    std::vector<int64_t> sizes;
    for (int i = 0; i < std::max(a.dims(), b.dims()); i++) {
      const int64_t of_a = dim(a, i), of_b = dim(b, i), size = of_a == 1 ? of_b : of_a;
      OP_REQUIRES(context, of_b == size || of_b == 1,
                  errors::InvalidArgument("shapes ", a.shape().DebugString(), " and ", b.shape().DebugString(),
                                          " do not fit together"));
      sizes.insert(sizes.begin(), size);
      if (size == 1) continue;
      const Axes found{size, of_a != 1, of_b != 1};
      if (!axes.empty() && axes.back().a_steps == found.a_steps && axes.back().b_steps == found.b_steps)
        axes.back().size *= size;
      else
        axes.push_back(found);
    }
    if (axes.empty()) axes.push_back({1, true, true});
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0, 1}, 0, TensorShape(sizes), &y));
    const float *from_a = data(a), *from_b = data(b);
    float* to = data(y);
    if (y->NumElements()) walk(axes, axes.size() - 1, from_a, from_b, to);
  }

 private:
  // Goes through the axes from the first to the last; pointers move on past what they have passed.
  void walk(const std::vector<Axes>& axes, size_t at, const float*& a, const float*& b, float*& y) const {
    const Axes& now = axes[at];
    if (at == 0) {
      arithmetic::binary(kind_, now.size, a, now.a_steps, b, now.b_steps, y);
      a += now.a_steps ? now.size : 1;
      b += now.b_steps ? now.size : 1;
      y += now.size;
      return;
    }
    for (int64_t i = 0; i < now.size; i++) {
      const float *first_a = a, *first_b = b;
      walk(axes, at - 1, a, b, y);
      if (!now.a_steps && i + 1 < now.size) a = first_a;
      if (!now.b_steps && i + 1 < now.size) b = first_b;
    }
  }

  arithmetic::Binary kind_;
};

class Unary : public Kernel {
 public:
  explicit Unary(OpKernelConstruction* context) : Kernel(context) {
    std::string kind;
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    kind_ = kind == "square_root"   ? arithmetic::SQUARE_ROOT
            : kind == "exponential" ? arithmetic::EXPONENTIAL
                                    : arithmetic::LOGARITHM;
  }

  void compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    if (x.NumElements()) arithmetic::unary(kind_, x.NumElements(), data(x), data(y));
  }

 private:
  arithmetic::Unary kind_;
};

// ---- types -------------------------------------------------------------------------------------------------------

template <typename T, typename U>
class Convert : public Kernel {
 public:
  using Kernel::Kernel;

  void compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));
    if (x.NumElements()) half::convert(data<T>(x), x.NumElements(), data<U>(y));
  }
};

template <typename T>
class Add : public Kernel {
 public:
  using Kernel::Kernel;

  void compute(OpKernelContext* context) override {
    const Tensor &a = context->input(0), &b = context->input(1);
    OP_REQUIRES(context, a.shape() == b.shape(),
                errors::InvalidArgument("shapes ", a.shape().DebugString(), " and ", b.shape().DebugString(),
                                        " differ"));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, a.shape(), &y));
    if (y->data() != a.data()) std::copy_n(data<T>(a), a.NumElements(), data<T>(y));
    batch_norm::add(data<T>(b), a.NumElements(), data<T>(y));
  }
};

// ---- sums --------------------------------------------------------------------------------------------------------

class Sum : public Kernel {
 public:
  explicit Sum(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("mean", &mean_));
  }

  void compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES(context, x.dims() == 3 && x.dim_size(1) > 0,
                errors::InvalidArgument("x must be [outer, n, inner] with n > 0, not ", x.shape().DebugString()));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({x.dim_size(0), x.dim_size(2)}), &y));
    const double divisor = mean_ ? static_cast<double>(x.dim_size(1)) : 1.0;
    arithmetic::sum(x.dim_size(0), x.dim_size(1), x.dim_size(2), divisor, data(x), data(y));
  }

 private:
  bool mean_;
};

// ---- cross-entropy -----------------------------------------------------------------------------------------------

class CrossEntropy : public Kernel {
 public:
  using Kernel::Kernel;

  void compute(OpKernelContext* context) override {
    const Tensor &logits = context->input(0), &targets = context->input(1);
    OP_REQUIRES(context, logits.dims() == 2 && logits.NumElements() > 0 && logits.shape() == targets.shape(),
                errors::InvalidArgument("logits and targets must be [n, classes], not ",
                                        logits.shape().DebugString(), " and ", targets.shape().DebugString()));
    Tensor *losses = nullptr, *gradients = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({logits.dim_size(0)}), &losses));
    OP_REQUIRES_OK(context, context->allocate_output(1, logits.shape(), &gradients));
    arithmetic::cross_entropy(logits.dim_size(0), static_cast<int>(logits.dim_size(1)), data(logits), data(targets),
                              data(losses), data(gradients));
  }
};

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

}  // namespace

REGISTER_OP("PacelineBinary")
    .Input("a: float")
    .Input("b: float")
    .Output("y: float")
    .Attr("kind: {'add', 'subtract', 'multiply', 'divide', 'where_positive'}")
    .SetShapeFn(tensorflow::shape_inference::BroadcastBinaryOpShapeFn);
REGISTER_OP("PacelineUnary")
    .Input("x: float")
    .Output("y: float")
    .Attr("kind: {'square_root', 'exponential', 'logarithm'}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_OP("PacelineConvert")
    .Input("x: T")
    .Output("y: U")
    .Attr("T: {float, bfloat16}")
    .Attr("U: {float, bfloat16}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_OP("PacelineAdd")
    .Input("a: T")
    .Input("b: T")
    .Output("y: T")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_OP("PacelineSum").Input("x: float").Output("y: float").Attr("mean: bool").SetShapeFn([](InferenceContext* c) {
  ShapeHandle x;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &x));
  c->set_output(0, c->Matrix(c->Dim(x, 0), c->Dim(x, 2)));
  return absl::OkStatus();
});
REGISTER_OP("PacelineCrossEntropy")
    .Input("logits: float")
    .Input("targets: float")
    .Output("losses: float")
    .Output("gradients: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle both;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &both));
      TF_RETURN_IF_ERROR(c->Merge(both, c->input(1), &both));
      c->set_output(0, c->Vector(c->Dim(both, 0)));
      c->set_output(1, both);
      return absl::OkStatus();
    });

REGISTER_CPU("PacelineBinary", Binary);
REGISTER_CPU("PacelineUnary", Unary);
REGISTER_OF("PacelineConvert", float, Convert<float, Half>);
REGISTER_OF("PacelineConvert", tensorflow::bfloat16, Convert<Half, float>);
REGISTER_BOTH("PacelineAdd", Add);
REGISTER_CPU("PacelineSum", Sum);
REGISTER_CPU("PacelineCrossEntropy", CrossEntropy);

}  // namespace paceline
