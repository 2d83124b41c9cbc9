#include "swish.h"

#include <algorithm>

#include "simd.h"

namespace paceline::swish {
namespace {

constexpr size_t CHUNK = 256;  // rows that are added in float32 before their sum goes on in double

inline V8 set(float value) { return _mm256_set1_ps(value); }

// e^x to about 2 units in the last place; x is kept within [-87, 87]. Cody and Waite's reduction, and the
// polynomial of Cephes (expf).
inline V8 exponential(V8 x) {
  x = _mm256_min_ps(_mm256_max_ps(x, set(-87.0f)), set(87.0f));
  const V8 n = _mm256_round_ps(_mm256_mul_ps(x, set(1.44269504088896341f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  V8 r = _mm256_fnmadd_ps(n, set(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, set(-2.12194440e-4f), r);
  V8 p = set(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, set(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, set(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, set(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, set(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, set(5.0000001201e-1f));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, set(1.0f)));
  const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
}

inline V8 sigmoid(V8 z) {
  return _mm256_div_ps(set(1.0f), _mm256_add_ps(set(1.0f), exponential(_mm256_sub_ps(zero(), z))));
}

// d act(z) / dz = s (1 + alpha z (1 - s)), s = sigmoid(alpha z)
inline V8 slope(V8 z, V8 alpha) {
  const V8 az = _mm256_mul_ps(alpha, z), s = sigmoid(az);
  return _mm256_mul_ps(s, _mm256_fmadd_ps(az, _mm256_sub_ps(set(1.0f), s), set(1.0f)));
}

inline void add_to(double* sums, V8 values) {
  alignas(32) float row[8];
  _mm256_store_ps(row, values);
  for (int e = 0; e < 8; e++) sums[e] += row[e];
}

}  // namespace

void forward(const Shape& s, const float* x, float alpha, const float* factor, const float* offset, float* y) {
  const V8 a = set(alpha);
  for (size_t r = 0; r < s.rows; r++, x += s.c, y += s.c)
    for (int q = 0; q < s.c; q += 8) {
      const V8 z = _mm256_fmadd_ps(load(x + q), load(factor + q), load(offset + q));
      store(y + q, _mm256_mul_ps(z, sigmoid(_mm256_mul_ps(a, z))));
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
        const V8 d = _mm256_mul_ps(load(dy + at), slope(_mm256_fmadd_ps(v, f, o), a));
        if (dz) store(dz + at, d);
        of_one = _mm256_add_ps(of_one, d);
        of_x = _mm256_fmadd_ps(d, _mm256_sub_ps(v, m), of_x);
      }
      add_to(sum + q, of_one);
      add_to(product + q, of_x);
    }
}

void combine(const Shape& s, const float* x, const float* other, const float* factor, const float* of_x,
             const float* constant, float* y) {
  for (size_t r = 0; r < s.rows; r++, x += s.c, other += s.c, y += s.c)
    for (int q = 0; q < s.c; q += 8) {
      const V8 rest = _mm256_fmadd_ps(load(of_x + q), load(other + q), load(constant + q));
      store(y + q, _mm256_fmadd_ps(load(factor + q), load(x + q), rest));
    }
}

}  // namespace paceline::swish
