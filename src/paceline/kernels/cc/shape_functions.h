// What TensorFlow knows of an operation's outputs when it builds a graph, and which inputs it refuses then.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace paceline {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using Status = absl::Status;
namespace errors = tensorflow::errors;

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
Status conv3x3_shape(InferenceContext* c, int own, int channels, ShapeHandle* y) {
  ShapeHandle images, filter;
  DimensionHandle same;
  TF_RETURN_IF_ERROR(shape_of(c, 0, 4, &images));
  TF_RETURN_IF_ERROR(shape_of(c, 1, 4, &filter));
  for (int i = 0; i < 2; i++) TF_RETURN_IF_ERROR(c->WithValue(c->Dim(filter, i), 3, &same));
  for (int i = 2; i < 4; i++) TF_RETURN_IF_ERROR(multiple_of_8(c, c->Dim(filter, i)));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(images, 3), c->Dim(filter, own), &same));
  TF_RETURN_IF_ERROR(c->ReplaceDim(images, 3, c->Dim(filter, channels), y));
  c->set_output(0, *y);
  return absl::OkStatus();
}

// Outputs after y: `moments` of its channels, 3 or none, then the input once more, or not.
Status conv_extra_shapes(InferenceContext* c, ShapeHandle y) {
  int num_moments;
  TF_RETURN_IF_ERROR(c->GetAttr("num_moments", &num_moments));
  if (num_moments != 0 && num_moments != 3)
    return errors::InvalidArgument("num_moments must be 0 or 3, not ", num_moments);
  const auto vector = c->Vector(c->RankKnown(y) ? c->Dim(y, 3) : c->UnknownDim());
  for (int i = 1; i < 1 + num_moments; i++) c->set_output(i, vector);
  for (int i = 1 + num_moments; i < c->num_outputs(); i++) c->set_output(i, c->input(0));
  return absl::OkStatus();
}

Status conv3x3_forward_shape(InferenceContext* c) {
  ShapeHandle y;
  TF_RETURN_IF_ERROR(conv3x3_shape(c, 2, 3, &y));
  return conv_extra_shapes(c, y);
}

Status conv3x3_input_gradient_shape(InferenceContext* c) {
  ShapeHandle dx;
  TF_RETURN_IF_ERROR(conv3x3_shape(c, 3, 2, &dx));
  for (int i = 2; i < c->num_inputs(); i++) TF_RETURN_IF_ERROR(c->Merge(dx, c->input(i), &dx));
  c->set_output(0, dx);
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

Status strided_shape(InferenceContext* c, ShapeHandle* y) {
  int stride;
  std::string padding;
  ShapeHandle x, filter;
  DimensionHandle same;
  TF_RETURN_IF_ERROR(c->GetAttr("stride", &stride));
  TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
  TF_RETURN_IF_ERROR(shape_of(c, 0, 4, &x));
  TF_RETURN_IF_ERROR(shape_of(c, 1, 4, &filter));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, 3), c->Dim(filter, 2), &same));
  TF_RETURN_IF_ERROR(multiple_of_8(c, c->Dim(filter, 3)));
  const auto strided = [&](int i) {
    const auto size = c->Dim(x, i), kernel = c->Dim(filter, i - 1);
    if (!c->ValueKnown(size) || (padding != "SAME" && !c->ValueKnown(kernel))) return c->UnknownDim();
    const int64_t steps = c->Value(size) - (padding == "SAME" ? 1 : c->Value(kernel));
    return steps < 0 ? c->UnknownDim() : c->MakeDim(steps / stride + 1);  // the kernel reports what does not fit
  };
  *y = c->MakeShape({c->Dim(x, 0), strided(1), strided(2), c->Dim(filter, 3)});
  c->set_output(0, *y);
  return absl::OkStatus();
}

Status conv_shape(InferenceContext* c) {
  ShapeHandle y;
  TF_RETURN_IF_ERROR(strided_shape(c, &y));
  return conv_extra_shapes(c, y);
}

Status conv_norm_shape(InferenceContext* c) {
  ShapeHandle y, vector;
  TF_RETURN_IF_ERROR(strided_shape(c, &y));
  vector = c->Vector(c->Dim(y, 3));
  for (int i = 2; i < 6; i++) TF_RETURN_IF_ERROR(c->Merge(c->input(i), vector, &vector));
  for (int i = 6; i < c->num_inputs(); i++) TF_RETURN_IF_ERROR(c->Merge(y, c->input(i), &y));
  c->set_output(0, y);
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
  int residuals;
  TF_RETURN_IF_ERROR(c->GetAttr("n", &residuals));
  TF_RETURN_IF_ERROR(norm_inputs(c, 0, 1, 3, &x, &vector));
  const int moments = 3 + residuals;
  for (int i = 3; i < moments; i++) TF_RETURN_IF_ERROR(c->Merge(x, c->input(i), &x));
  for (int i = moments; i < c->num_inputs(); i++)
    TF_RETURN_IF_ERROR(c->Merge(vector, c->input(i), &vector));
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

}  // namespace
}  // namespace paceline
