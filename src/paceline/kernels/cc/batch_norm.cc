#include "batch_norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "bfloat16.h"

namespace paceline::batch_norm {
namespace {

constexpr size_t CHUNK = 256;  // wide rows that are added in float32 before their sum goes on in double

// What follows the norm. Each kernel is compiled for each kind.
enum Activation { NONE, RELU, LEAKY };

Activation kind_of(float slope) { return slope == 1 ? NONE : slope == 0 ? RELU : LEAKY; }

// Few channels are widened: 2 or 4 rows are taken as one, so that there are four vectors to work on. Rows that are left
// are one more, shorter row.
struct Wide {
  int times, c;
  size_t rows, rest;  // wide rows, and the floats that are left

  Wide(size_t given, int channels) : times(1), c(channels) {
    for (; c < 32; c *= 2) times *= 2;
    rows = given / times;
    rest = given % times * channels;
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

// Calls body(number of vectors, first channel, first element, rows) for groups of four vectors of a chunk of rows.
template <typename F>
inline void for_chunk(int c, size_t at, size_t rows, F body) {
  int first = 0;
  for (; first + 32 <= c; first += 32) body(std::integral_constant<int, 4>(), first, at + first, rows);
  switch ((c - first) / 8) {
    case 3: return body(std::integral_constant<int, 3>(), first, at + first, rows);
    case 2: return body(std::integral_constant<int, 2>(), first, at + first, rows);
    case 1: return body(std::integral_constant<int, 1>(), first, at + first, rows);
  }
}

// The same for all chunks from wide row `first` on.
template <typename F>
inline void for_groups(const Wide& w, F body, size_t first = 0) {
  for (size_t r = first; r < w.rows; r += CHUNK) for_chunk(w.c, r * w.c, std::min(CHUNK, w.rows - r), body);
  if (w.rest) for_chunk(static_cast<int>(w.rest), w.rows * w.c, 1, body);
}

template <int N>
inline void load_all(const float* from, V8 (&to)[N]) {
  for (int q = 0; q < N; q++) to[q] = load(from + 8 * q);
}

template <int N>
inline void add_to(double* sums, const V8 (&values)[N]) {
  for (int q = 0; q < N; q++)
    for (int e = 0; e < 8; e++) sums[8 * q + e] += values[q][e];
}

template <Activation ACT>
inline V8 activate(V8 z, V8 slope) {
  if (ACT == RELU) return max(z, zero());
  if (ACT == LEAKY) return z > 0 ? z : z * slope;
  return z;
}

// dz from dy, where z (or y, which has the same sign) is at hand.
template <Activation ACT>
inline V8 through_activation(V8 dy, V8 z, V8 slope) {
  if (ACT == RELU) return where(z > 0, dy);
  if (ACT == LEAKY) return z > 0 ? dy : dy * slope;
  return dy;
}

// Sums of x - shift and of its square.
template <int N, typename T>
void add_moments(const T* x, size_t rows, size_t ld, const float* shift, double* sum,
                 double* square) {
  V8 s[N], a[N], b[N];
  load_all(shift, s);
  for (int q = 0; q < N; q++) a[q] = b[q] = zero();
  for (size_t r = 0; r < rows; r++, x += ld)
    for (int q = 0; q < N; q++) {
      const V8 d = load(x + 8 * q) - s[q];
      a[q] = a[q] + d;
      b[q] = fma(d, d, b[q]);
    }
  add_to(sum, a);
  add_to(square, b);
}

template <int N, Activation ACT, bool RESIDUAL, typename T>
void apply(const T* x, const T* residual, size_t rows, size_t ld, const float* factor, const float* offset, float slope,
           T* y) {
  V8 f[N], o[N];
  load_all(factor, f);
  load_all(offset, o);
  const V8 s = set(slope);
  for (size_t r = 0; r < rows; r++, x += ld, y += ld) {
    for (int q = 0; q < N; q++) {
      V8 z = fma(load(x + 8 * q), f[q], o[q]);
      if (RESIDUAL) z = z + load(residual + 8 * q);
      store(y + 8 * q, activate<ACT>(z, s));
    }
    if (RESIDUAL) residual += ld;
  }
}

// Sums of dz and of dz (x - mean). With a residual dz is also its gradient.
template <int N, Activation ACT, bool RESIDUAL, typename T>
void add_products(const T* dy, const T* x, const T* y, size_t rows, size_t ld, const float* factor,
                  const float* offset, float slope, const float* mean, T* dresidual, double* sum, double* product) {
  V8 f[N], o[N], m[N], a[N], b[N];
  load_all(factor, f);
  load_all(offset, o);
  load_all(mean, m);
  for (int q = 0; q < N; q++) a[q] = b[q] = zero();
  const V8 s = set(slope);
  for (size_t r = 0; r < rows; r++, x += ld, dy += ld) {
    for (int q = 0; q < N; q++) {
      const V8 v = load(x + 8 * q);
      V8 dz = load(dy + 8 * q);
      if (ACT != NONE) {
        const V8 z = RESIDUAL ? load(y + 8 * q) : fma(v, f[q], o[q]);
        dz = through_activation<ACT>(dz, z, s);
      }
      if (RESIDUAL) store(dresidual + 8 * q, dz);
      a[q] = a[q] + dz;
      b[q] = fma(dz, v - m[q], b[q]);
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
template <int N, Activation ACT, typename T>
void apply_gradient(const T* dz, const T* x, size_t rows, size_t ld, const float* factor, const float* offset,
                    float slope, const float* of_x, const float* constant, T* dx) {
  V8 f[N], o[N], k[N], l[N];
  load_all(factor, f);
  load_all(offset, o);
  load_all(of_x, k);
  load_all(constant, l);
  const V8 s = set(slope);
  for (size_t r = 0; r < rows; r++, x += ld, dz += ld, dx += ld)
    for (int q = 0; q < N; q++) {
      const V8 v = load(x + 8 * q);
      V8 d = load(dz + 8 * q);
      if (ACT != NONE) d = through_activation<ACT>(d, fma(v, f[q], o[q]), s);
      store(dx + 8 * q, fma(f[q], d, fma(k[q], v, l[q])));
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

template <typename T>
void Moments::add(const T* x, size_t rows, bool all) {
  const Wide w(rows, c_);
  if (shift_.empty()) {
    std::vector<float> first(c_);
    for (int i = 0; i < c_; i += 8) store(&first[i], load(x + i));
    shift_ = w.repeat(first.data());
    sum_.resize(w.c);
    square_.resize(w.c);
  }
  const auto add = [&](auto n, int first, size_t at, size_t some) {
    add_moments<n()>(x + at, some, w.c, &shift_[first], &sum_[first], &square_[first]);
  };
  for (; done_ + CHUNK <= w.rows; done_ += CHUNK) for_chunk(w.c, done_ * w.c, CHUNK, add);
  if (all) for_groups(w, add, done_);
}

template <typename T>
void Moments::finish(const T* x, size_t rows, float epsilon, float* mean, float* scale, float* variance) {
  add(x, rows, true);
  fold(sum_, c_);
  fold(square_, c_);
  const double n = static_cast<double>(rows);
  for (int i = 0; i < c_; i++) {
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

template <typename T>
void add(const T* x, size_t numbers, T* y) {
  const size_t rest = numbers % 8, whole = numbers - rest;
  for (size_t i = 0; i < whole; i += 8) store(y + i, load(y + i) + load(x + i));
  T a[8] = {}, b[8] = {};
  std::copy(x + whole, x + numbers, a);
  std::copy(y + whole, y + numbers, b);
  store(b, load(b) + load(a));
  std::copy(b, b + rest, y + whole);
}

template <typename T>
void forward(const Shape& s, const T* x, const T* residual, float slope, const float* gamma, const float* beta,
             const float* mean, const float* scale, T* y) {
  const Wide w(s.rows, s.c);
  const Affine affine(s.c, gamma, beta, mean, scale);
  const auto factor = w.repeat(affine.factor.data()), offset = w.repeat(affine.offset.data());
  with_kind(kind_of(slope), [&](auto kind) {
    for_groups(w, [&](auto n, int first, size_t at, size_t rows) {
      const auto kernel = residual ? apply<n(), kind(), true, T> : apply<n(), kind(), false, T>;
      kernel(x + at, residual ? residual + at : nullptr, rows, w.c, &factor[first], &offset[first],
             slope, y + at);
    });
  });
}

template <typename T>
void backward(const Shape& s, const T* dy, const T* x, const T* y, float slope, const float* gamma, const float* beta,
              const float* mean, const float* scale, T* dx, T* dresidual, float* dgamma, float* dbeta) {
  const Wide w(s.rows, s.c);
  const Affine affine(s.c, gamma, beta, mean, scale);
  const auto factor = w.repeat(affine.factor.data()), offset = w.repeat(affine.offset.data());
  const auto means = w.repeat(mean);
  std::vector<double> sum(w.c), product(w.c);
  with_kind(kind_of(slope), [&](auto kind) {
    for_groups(w, [&](auto n, int first, size_t at, size_t rows) {
      const auto kernel =
          dresidual ? add_products<n(), kind(), true, T> : add_products<n(), kind(), false, T>;
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
  const T* from = dresidual ? dresidual : dy;  // what went through the activation already, or not
  with_kind(dresidual ? NONE : kind_of(slope), [&](auto kind) {
    for_groups(w, [&](auto n, int first, size_t at, size_t rows) {
      apply_gradient<n(), kind()>(from + at, x + at, rows, w.c, &factor[first], &offset[first],
                                  slope, &wide_x[first], &wide_constant[first], dx + at);
    });
  });
}

#define FOR_IMAGES_OF(T)                                                                                              \
  template void Moments::add(const T*, size_t, bool);                                                                 \
  template void Moments::finish(const T*, size_t, float, float*, float*, float*);                                     \
  template void add(const T*, size_t, T*);                                                                            \
  template void forward(const Shape&, const T*, const T*, float, const float*, const float*, const float*,            \
                        const float*, T*);                                                                            \
  template void backward(const Shape&, const T*, const T*, const T*, float, const float*, const float*, const float*, \
                         const float*, T*, T*, float*, float*);
FOR_IMAGES_OF(float)
FOR_IMAGES_OF(Half)

}  // namespace paceline::batch_norm
