#include "swish.h"

#include <algorithm>

#include "functions.h"
#include "simd.h"

namespace paceline::swish {
namespace {

constexpr size_t CHUNK = 256;  // rows that are added in float32 before their sum goes on in double

inline V8 sigmoid(V8 z) {
  return 1.0f / (1.0f + exponential(zero() - z));
}

// d act(z) / dz = s (1 + alpha z (1 - s)), s = sigmoid(alpha z)
inline V8 slope(V8 z, V8 alpha) {
  const V8 az = alpha * z, s = sigmoid(az);
  return s * fma(az, 1.0f - s, set(1.0f));
}

inline void add_to(double* sums, V8 values) {
  for (int e = 0; e < 8; e++) sums[e] += values[e];
}

}  // namespace

void forward(const Shape& s, const float* x, float alpha, const float* factor, const float* offset, float* y) {
  const V8 a = set(alpha);
  for (size_t r = 0; r < s.rows; r++, x += s.c, y += s.c)
    for (int q = 0; q < s.c; q += 8) {
      const V8 z = fma(load(x + q), load(factor + q), load(offset + q));
      store(y + q, z * sigmoid(a * z));
    }
}

void backward(const Shape& s, const float* dy, const float* x, float alpha, const float* factor,
              const float* offset, const float* shift, float* dz, double* sum, double* product) {
  const V8 a = set(alpha);
  std::fill(sum, sum + s.c, 0.0);
  std::fill(product, product + s.c, 0.0);
  for (size_t first = 0; first < s.rows; first += CHUNK)
    for (int q = 0; q < s.c; q += 8) {
      const V8 f = load(factor + q), o = load(offset + q), m = load(shift + q);
      V8 of_one = zero(), of_x = zero();
      const size_t last = std::min(first + CHUNK, s.rows);
      for (size_t r = first, at = first * s.c + q; r < last; r++, at += s.c) {
        const V8 v = load(x + at);
        const V8 d = load(dy + at) * slope(fma(v, f, o), a);
        if (dz) store(dz + at, d);
        of_one = of_one + d;
        of_x = fma(d, v - m, of_x);
      }
      add_to(sum + q, of_one);
      add_to(product + q, of_x);
    }
}

void combine(const Shape& s, const float* x, const float* other, const float* factor, const float* of_x,
             const float* constant, float* y) {
  for (size_t r = 0; r < s.rows; r++, x += s.c, other += s.c, y += s.c)
    for (int q = 0; q < s.c; q += 8) {
      const V8 rest = fma(load(of_x + q), load(other + q), load(constant + q));
      store(y + q, fma(load(factor + q), load(x + q), rest));
    }
}

}  // namespace paceline::swish
