// Resizing as a TensorFlow operation for CPUs.
#include "resize.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensors.h"

namespace paceline {
namespace {

template <typename T>
class Resize : public Kernel {
 public:
  explicit Resize(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("antialias", &antialias_));
  }

  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &size = context->input(1);
    OP_REQUIRES(context, x.dims() == 4 && x.NumElements() > 0 && size.NumElements() == 2,
                errors::InvalidArgument("images must be [n, height, width, channels] and not empty, not ",
                                        x.shape().DebugString()));
    const int tall = size.flat<int>()(0), wide = size.flat<int>()(1);
    const int n = x.dim_size(0), h = x.dim_size(1), w = x.dim_size(2), c = x.dim_size(3);
    OP_REQUIRES(context, tall > 0 && wide > 0, errors::InvalidArgument("the new size must be positive"));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({n, tall, wide, c}), &y));
    const resize::Filter rows(h, tall, antialias_), columns(w, wide, antialias_);
    for (int64_t i = 0; i < n; i++)
      resize::image(x.flat<T>().data() + i * h * w * c, w, c, rows, columns, data(y) + i * tall * wide * c);
  }

 private:
  bool antialias_;
};

}  // namespace

REGISTER_OP("PacelineResize")
    .Input("images: T")
    .Input("size: int32")
    .Output("resized: float")
    .Attr("T: {uint8, float}")
    .Attr("antialias: bool")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle images, size;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &images));
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &size));
      TF_RETURN_IF_ERROR(c->WithRank(size, 2, &size));
      c->set_output(0, c->MakeShape({c->Dim(images, 0), c->Dim(size, 0), c->Dim(size, 1), c->Dim(images, 3)}));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("PacelineResize").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"), Resize<float>);
REGISTER_KERNEL_BUILDER(Name("PacelineResize").Device(tensorflow::DEVICE_CPU).TypeConstraint<uint8_t>("T"),
                        Resize<uint8_t>);

}  // namespace paceline
