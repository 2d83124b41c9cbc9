#include "batch_norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace paceline::batch_norm {
namespace {

constexpr size_t CHUNK = 256;  // rows that are added in float32 before their sum goes on in double

// What follows the norm. Each kernel is compiled for each kind.
enum Activation { NONE, RELU, LEAKY };

Activation kind_of(float slope) { return slope == 1 ? NONE : slope == 0 ? RELU : LEAKY; }

// Few channels are widened: several rows are taken as one, so that there are up to four vectors to work on.
struct Wide {
  size_t rows;
  int c, times;
  explicit Wide(const Shape& s) : rows(s.rows), c(s.c), times(1) {
    while (c < 32 && rows % 2 == 0) {
      rows /= 2;
      c *= 2;
      times *= 2;
    }
  }
  std::vector<float> repeat(const float* values) const {
    std::vector<float> wide;
    for (int t = 0; t < times; t++) wide.insert(wide.end(), values, values + c / times);
    return wide;
  }
};

void fold(std::vector<double>& sums, int c) {
  for (size_t i = c; i < sums.size(); i++) sums[i % c] += sums[i];
}

// Calls body(number of vectors, first channel, first element, rows) for chunks of rows and groups of four vectors.
template <typename F>
inline void for_groups(const Wide& w, F body) {
  for (size_t r = 0; r < w.rows; r += CHUNK) {
    const size_t rows = std::min(CHUNK, w.rows - r);
    int first = 0;
    for (; first + 32 <= w.c; first += 32)
      body(std::integral_constant<int, 4>(), first, r * w.c + first, rows);
    const size_t at = r * w.c + first;
    switch ((w.c - first) / 8) {
      case 3: body(std::integral_constant<int, 3>(), first, at, rows); break;
      case 2: body(std::integral_constant<int, 2>(), first, at, rows); break;
      case 1: body(std::integral_constant<int, 1>(), first, at, rows); break;
    }
  }
}

template <int N>
inline void load_all(const float* from, V8 (&to)[N]) {
  for (int q = 0; q < N; q++) to[q] = load(from + 8 * q);
}

template <int N>
inline void add_to(double* sums, const V8 (&values)[N]) {
  alignas(32) float row[8];
  for (int q = 0; q < N; q++) {
    _mm256_store_ps(row, values[q]);
    for (int e = 0; e < 8; e++) sums[8 * q + e] += row[e];
  }
}

inline V8 is_positive(V8 z) { return _mm256_cmp_ps(z, zero(), _CMP_GT_OQ); }

template <Activation ACT>
inline V8 activate(V8 z, V8 slope) {
  if (ACT == RELU) return _mm256_max_ps(z, zero());
  if (ACT == LEAKY) return _mm256_blendv_ps(_mm256_mul_ps(z, slope), z, is_positive(z));
  return z;
}

// dz from dy, where z (or y, which has the same sign) is at hand.
template <Activation ACT>
inline V8 through_activation(V8 dy, V8 z, V8 slope) {
  if (ACT == RELU) return _mm256_and_ps(dy, is_positive(z));
  if (ACT == LEAKY) return _mm256_blendv_ps(_mm256_mul_ps(dy, slope), dy, is_positive(z));
  return dy;
}

// Sums of x - shift and of its square.
template <int N>
void add_moments(const float* x, size_t rows, size_t ld, const float* shift, double* sum,
                 double* square) {
  V8 s[N], a[N], b[N];
  load_all(shift, s);
  for (int q = 0; q < N; q++) a[q] = b[q] = zero();
  for (size_t r = 0; r < rows; r++, x += ld)
    for (int q = 0; q < N; q++) {
      const V8 d = _mm256_sub_ps(load(x + 8 * q), s[q]);
      a[q] = _mm256_add_ps(a[q], d);
      b[q] = _mm256_fmadd_ps(d, d, b[q]);
    }
  add_to(sum, a);
  add_to(square, b);
}

template <int N, Activation ACT, bool RESIDUAL>
void apply(const float* x, const float* residual, size_t rows, size_t ld, const float* factor,
           const float* offset, float slope, float* y) {
  V8 f[N], o[N];
  load_all(factor, f);
  load_all(offset, o);
  const V8 s = _mm256_set1_ps(slope);
  for (size_t r = 0; r < rows; r++, x += ld, y += ld) {
    for (int q = 0; q < N; q++) {
      V8 z = _mm256_fmadd_ps(load(x + 8 * q), f[q], o[q]);
      if (RESIDUAL) z = _mm256_add_ps(z, load(residual + 8 * q));
      store(y + 8 * q, activate<ACT>(z, s));
    }
    if (RESIDUAL) residual += ld;
  }
}

// Sums of dz and of dz (x - mean). With a residual dz is also its gradient.
template <int N, Activation ACT, bool RESIDUAL>
void add_products(const float* dy, const float* x, const float* y, size_t rows, size_t ld,
                  const float* factor, const float* offset, float slope, const float* mean,
                  float* dresidual, double* sum, double* product) {
  V8 f[N], o[N], m[N], a[N], b[N];
  load_all(factor, f);
  load_all(offset, o);
  load_all(mean, m);
  for (int q = 0; q < N; q++) a[q] = b[q] = zero();
  const V8 s = _mm256_set1_ps(slope);
  for (size_t r = 0; r < rows; r++, x += ld, dy += ld) {
    for (int q = 0; q < N; q++) {
      const V8 v = load(x + 8 * q);
      V8 dz = load(dy + 8 * q);
      if (ACT != NONE) {
        const V8 z = RESIDUAL ? load(y + 8 * q) : _mm256_fmadd_ps(v, f[q], o[q]);
        dz = through_activation<ACT>(dz, z, s);
      }
      if (RESIDUAL) store(dresidual + 8 * q, dz);
      a[q] = _mm256_add_ps(a[q], dz);
      b[q] = _mm256_fmadd_ps(dz, _mm256_sub_ps(v, m[q]), b[q]);
    }
    if (RESIDUAL) {
      dresidual += ld;
      if (ACT != NONE) y += ld;
    }
  }
  add_to(sum, a);
  add_to(product, b);
}

// dx = factor dz + of_x x + constant. `dz` is dy where ACT is not NONE.
template <int N, Activation ACT>
void apply_gradient(const float* dz, const float* x, size_t rows, size_t ld, const float* factor,
                    const float* offset, float slope, const float* of_x, const float* constant,
                    float* dx) {
  V8 f[N], o[N], k[N], l[N];
  load_all(factor, f);
  load_all(offset, o);
  load_all(of_x, k);
  load_all(constant, l);
  const V8 s = _mm256_set1_ps(slope);
  for (size_t r = 0; r < rows; r++, x += ld, dz += ld, dx += ld)
    for (int q = 0; q < N; q++) {
      const V8 v = load(x + 8 * q);
      V8 d = load(dz + 8 * q);
      if (ACT != NONE) d = through_activation<ACT>(d, _mm256_fmadd_ps(v, f[q], o[q]), s);
      store(dx + 8 * q, _mm256_fmadd_ps(f[q], d, _mm256_fmadd_ps(k[q], v, l[q])));
    }
}

// Calls body with the kind as a compile-time constant.
template <typename F>
inline void with_kind(Activation kind, F body) {
  switch (kind) {
    case NONE: return body(std::integral_constant<Activation, NONE>());
    case RELU: return body(std::integral_constant<Activation, RELU>());
    case LEAKY: return body(std::integral_constant<Activation, LEAKY>());
  }
}

}  // namespace

void Moments::add(const float* x, size_t rows) {
  const int c = static_cast<int>(shift_.size());
  if (!rows_) std::copy(x, x + c, shift_.begin());
  rows_ += rows;
  const Wide w({rows, c});
  const std::vector<float> shift = w.repeat(shift_.data());
  std::vector<double> sum(w.c), square(w.c);
  for_groups(w, [&](auto n, int first, size_t at, size_t some) {
    add_moments<n()>(x + at, some, w.c, &shift[first], &sum[first], &square[first]);
  });
  for (int i = 0; i < w.c; i++) {
    sum_[i % c] += sum[i];
    square_[i % c] += square[i];
  }
}

void Moments::finish(float epsilon, float* mean, float* scale, float* variance) const {
  const double n = static_cast<double>(rows_);
  for (size_t i = 0; i < shift_.size(); i++) {
    const double m = sum_[i] / n, v = std::max(0.0, square_[i] / n - m * m);
    mean[i] = static_cast<float>(shift_[i] + m);
    scale[i] = static_cast<float>(1 / std::sqrt(v + epsilon));
    variance[i] = static_cast<float>(v * n / std::max(1.0, n - 1));
  }
}

Affine::Affine(int c, const float* gamma, const float* beta, const float* mean, const float* scale)
    : factor(c), offset(c) {
  for (int i = 0; i < c; i++) {
    factor[i] = gamma[i] * scale[i];
    offset[i] = beta[i] - mean[i] * factor[i];
  }
}

void scale(int c, const float* variance, float epsilon, float* scale) {
  for (int i = 0; i < c; i++)
    scale[i] = static_cast<float>(1 / std::sqrt(static_cast<double>(variance[i]) + epsilon));
}

void add(const float* x, size_t floats, float* y) {
  for (size_t i = 0; i < floats; i += 8) store(y + i, _mm256_add_ps(load(y + i), load(x + i)));
}

void forward(const Shape& s, const float* x, const float* residual, float slope, const float* gamma,
             const float* beta, const float* mean, const float* scale, float* y) {
  const Wide w(s);
  const Affine affine(s.c, gamma, beta, mean, scale);
  const auto factor = w.repeat(affine.factor.data()), offset = w.repeat(affine.offset.data());
  with_kind(kind_of(slope), [&](auto kind) {
    for_groups(w, [&](auto n, int first, size_t at, size_t rows) {
      const auto kernel = residual ? apply<n(), kind(), true> : apply<n(), kind(), false>;
      kernel(x + at, residual ? residual + at : nullptr, rows, w.c, &factor[first], &offset[first],
             slope, y + at);
    });
  });
}

void backward(const Shape& s, const float* dy, const float* x, const float* y, float slope,
              const float* gamma, const float* beta, const float* mean, const float* scale,
              float* dx, float* dresidual, float* dgamma, float* dbeta) {
  const Wide w(s);
  const Affine affine(s.c, gamma, beta, mean, scale);
  const auto factor = w.repeat(affine.factor.data()), offset = w.repeat(affine.offset.data());
  const auto means = w.repeat(mean);
  std::vector<double> sum(w.c), product(w.c);
  with_kind(kind_of(slope), [&](auto kind) {
    for_groups(w, [&](auto n, int first, size_t at, size_t rows) {
      const auto kernel =
          dresidual ? add_products<n(), kind(), true> : add_products<n(), kind(), false>;
      kernel(dy + at, x + at, y ? y + at : nullptr, rows, w.c, &factor[first], &offset[first],
             slope, &means[first], dresidual ? dresidual + at : nullptr, &sum[first],
             &product[first]);
    });
  });
  fold(sum, s.c);
  fold(product, s.c);
  std::vector<float> of_x(s.c), constant(s.c);
  const double n = static_cast<double>(s.rows);
  for (int i = 0; i < s.c; i++) {
    dbeta[i] = static_cast<float>(sum[i]);
    dgamma[i] = static_cast<float>(product[i] * scale[i]);
    const double f = affine.factor[i], k = -f * scale[i] * scale[i] * product[i] / n;
    of_x[i] = static_cast<float>(k);
    constant[i] = static_cast<float>(-f * sum[i] / n - k * mean[i]);
  }
  const auto wide_x = w.repeat(of_x.data()), wide_constant = w.repeat(constant.data());
  const float* from = dresidual ? dresidual : dy;  // what went through the activation already, or not
  with_kind(dresidual ? NONE : kind_of(slope), [&](auto kind) {
    for_groups(w, [&](auto n, int first, size_t at, size_t rows) {
      apply_gradient<n(), kind()>(from + at, x + at, rows, w.c, &factor[first], &offset[first],
                                  slope, &wide_x[first], &wide_constant[first], dx + at);
    });
  });
}

}  // namespace paceline::batch_norm
