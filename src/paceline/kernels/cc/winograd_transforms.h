// The small transforms of Winograd's method F(4x4, 3x3), each along one axis.
#pragma once

#include "simd.h"

namespace paceline::winograd {
namespace {

// The points of interpolation are 0, +-A, +-B and infinity. 1/sqrt(2) and sqrt(2) give half the error of the usual 1
// and 2 for the same number of products.
constexpr double A = 0.70710678118654752, B = 1.41421356237309505;
constexpr double A2 = A * A, B2 = B * B;
constexpr double N0 = A2 * B2, NA = 2 * A2 * (A2 - B2), NB = 2 * B2 * (B2 - A2);
constexpr int POINTS = 36;  // of a tile after its transform: six by six

inline V8 set(double v) { return paceline::set(static_cast<float>(v)); }
inline V8 add(V8 a, V8 b) { return a + b; }
inline V8 sub(V8 a, V8 b) { return a - b; }
inline V8 mul(double a, V8 b) { return set(a) * b; }
inline V8 fma(double a, V8 b, V8 c) { return paceline::fma(set(a), b, c); }    // a b + c
inline V8 fnma(double a, V8 b, V8 c) { return paceline::fma(-set(a), b, c); }  // c - a b

// Three weights to six points: G.
inline void filter_points(const V8 (&g)[3], V8 (&u)[6]) {
  u[0] = mul(1 / N0, g[0]);
  const V8 even_a = fma(A2 / NA, g[2], mul(1 / NA, g[0]));
  const V8 even_b = fma(B2 / NB, g[2], mul(1 / NB, g[0]));
  u[1] = fma(A / NA, g[1], even_a);
  u[2] = fnma(A / NA, g[1], even_a);
  u[3] = fma(B / NB, g[1], even_b);
  u[4] = fnma(B / NB, g[1], even_b);
  u[5] = g[2];
}

// Six points to the gradient of three weights: G^T.
inline void filter_weights(const V8 (&u)[6], V8 (&w)[3]) {
  const V8 sum_a = add(u[1], u[2]), diff_a = sub(u[1], u[2]);
  const V8 sum_b = add(u[3], u[4]), diff_b = sub(u[3], u[4]);
  w[0] = fma(1 / NB, sum_b, fma(1 / NA, sum_a, mul(1 / N0, u[0])));
  w[1] = fma(B / NB, diff_b, mul(A / NA, diff_a));
  w[2] = fma(B2 / NB, sum_b, fma(A2 / NA, sum_a, u[5]));
}

}  // namespace
}  // namespace paceline::winograd
