// Checks of the tensors that an operation gets at run time, and memory for those that it makes.
#pragma once

#include <sys/mman.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cstdint>
#include <initializer_list>
#include <limits>

#include "half.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace paceline {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Status = absl::Status;
namespace errors = tensorflow::errors;

// Asks for huge pages: with cold caches, convolutions were 6 % and norms 25 % faster. It is only a hint, so the whole
// pages that the tensor is in may belong to its neighbours, too.
Status in_huge_pages(Status allocated, Tensor* const& tensor) {
  constexpr uintptr_t page = uintptr_t{2} << 20;
  if (!allocated.ok() || tensor->TotalBytes() < page / 2) return allocated;
  const auto start = reinterpret_cast<uintptr_t>(tensor->data());
  const uintptr_t first = start / page * page, last = (start + tensor->TotalBytes() + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  return allocated;
}

// IEEE 754 while it lives: numbers below the smallest normal one are kept. TensorFlow turns them to zero in the threads
// of its pools, but not where Python runs an operation itself, and x86 and ARM do it at different moments.
class GradualUnderflow {
 public:
#if defined(__x86_64__)
  GradualUnderflow() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~0x8040u); }  // flush to zero, denormals are zero
  ~GradualUnderflow() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  GradualUnderflow() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(before_ & ~(uint64_t{1} << 24)));
  }
  ~GradualUnderflow() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_;
#endif
};

class Kernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) final {
    const GradualUnderflow ieee;
    compute(context);
  }
  virtual void compute(OpKernelContext* context) = 0;
};

const float* data(const Tensor& t) { return t.flat<float>().data(); }
float* data(Tensor* t) { return t->flat<float>().data(); }

// The numbers of images, of float or Half.
template <typename T>
const T* data(const Tensor& t) { return static_cast<const T*>(t.data()); }
template <typename T>
T* data(Tensor* t) { return static_cast<T*>(t->data()); }

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

// Inputs `vectors` have one number for each channel of x, inputs [like, end) the shape of x.
Status check_rows(OpKernelContext* context, int images, std::initializer_list<int> vectors, int like,
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
  for (int i = like; i < end; i++)
    if (context->input(i).shape() != x.shape())
      return errors::InvalidArgument("input ", i, " ", context->input(i).shape().DebugString(),
                                     " does not have the shape of the input ", x.shape().DebugString());
  return absl::OkStatus();
}

}  // namespace
}  // namespace paceline

#define REGISTER_CPU(name, ...) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), __VA_ARGS__)
#define REGISTER_OF(name, type, ...)                                                                             \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), \
                          __VA_ARGS__)
// For images of both types.
#define REGISTER_BOTH(name, kernel)        \
  REGISTER_OF(name, float, kernel<float>); \
  REGISTER_OF(name, tensorflow::bfloat16, kernel<Half>)
