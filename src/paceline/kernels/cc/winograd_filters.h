// Filters of 3x3 weights to their 36 points of Winograd's method, and the gradients back.
#pragma once

#include <algorithm>
#include <cstddef>

#include "simd.h"
#include "winograd_transforms.h"

namespace paceline::winograd {
namespace {

// Eight output channels of one input channel's 3x3 weights to their 36 points.
inline void filter_block(const V8 (&g)[9], float* u, size_t point) {
  V8 half[6][3];
  for (int j = 0; j < 3; j++) {
    V8 w[3] = {g[j], g[3 + j], g[6 + j]}, p[6];
    filter_points(w, p);
    for (int i = 0; i < 6; i++) half[i][j] = p[i];
  }
  for (int i = 0; i < 6; i++) {
    V8 p[6];
    filter_points(half[i], p);
    for (int j = 0; j < 6; j++) store(u + (i * 6 + j) * point, p[j]);
  }
}

// U[point] is panels of 16 output channels (the last of 8 if need be): [panel][in][16].
inline float* panel_at(float* u, int in, int width, int in_channel, int out_channel) {
  const int first = out_channel / 16 * 16, columns = std::min(16, width - first);
  return u + static_cast<size_t>(first) * in + static_cast<size_t>(in_channel) * columns +
         (out_channel - first);
}

// Output channels [out0, out0 + width) of a filter [3,3,in,out] to U.
void transform_filter(const float* filter, int in, int out, int out0, int width, float* u,
                      size_t point) {
  const size_t tap = static_cast<size_t>(in) * out;
  for (int c = 0; c < in; c++) {
    // Short pieces of nine streams, far apart: the CPU does not foresee them. This took a fifth off a convolution
    // of 512 channels.
    const float* soon = filter + static_cast<size_t>(std::min(c + 6, in - 1)) * out + out0;
    for (int i = 0; i < 9; i++)
      for (int q = 0; q < width; q += 16) __builtin_prefetch(soon + i * tap + q);
    for (int q = 0; q < width; q += 8) {
      V8 g[9];
      for (int i = 0; i < 9; i++)
        g[i] = load(filter + i * tap + static_cast<size_t>(c) * out + out0 + q);
      filter_block(g, panel_at(u, in, width, c, q), point);
    }
  }
}

// The same of the filter that gives the input's gradient: turned by half a turn, with input and output channels
// exchanged; so this filter is stored as [3,3,out,in].
void transform_turned_filter(const float* filter, int in, int out, int out0, int width, float* u,
                             size_t point) {
  const size_t tap = static_cast<size_t>(in) * out;
  for (int q = 0; q < width; q += 8)
    for (int c = 0; c < in; c += 8) {
      V8 g[9][8];
      for (int i = 0; i < 9; i++) {
        for (int r = 0; r < 8; r++)
          g[8 - i][r] = load(filter + i * tap + static_cast<size_t>(out0 + q + r) * in + c);
        transpose8(g[8 - i]);
      }
      for (int r = 0; r < 8; r++) {
        V8 one[9];
        for (int i = 0; i < 9; i++) one[i] = g[i][r];
        filter_block(one, panel_at(u, in, width, c + r, q), point);
      }
    }
}

// dU[point][rows][k] to rows [c0, c0 + rows) of the filter's gradient.
void write_filter_gradient(const float* du, size_t point, int rows, int c0, int c, int k,
                           float* dfilter) {
  const size_t tap = static_cast<size_t>(c) * k;
  for (int r = 0; r < rows; r++)
    for (int q = 0; q < k; q += 8) {
      const float* from = du + static_cast<size_t>(r) * k + q;
      V8 half[3][6];
      for (int j = 0; j < 6; j++) {
        V8 p[6], w[3];
        for (int i = 0; i < 6; i++) p[i] = load(from + (i * 6 + j) * point);
        filter_weights(p, w);
        for (int i = 0; i < 3; i++) half[i][j] = w[i];
      }
      for (int i = 0; i < 3; i++) {
        V8 w[3];
        filter_weights(half[i], w);
        for (int j = 0; j < 3; j++)
          store(dfilter + (3 * i + j) * tap + static_cast<size_t>(c0 + r) * k + q, w[j]);
      }
    }
}

}  // namespace
}  // namespace paceline::winograd
