// The kernels on random shapes against plain loops in double precision, to be run under AddressSanitizer and
// UndefinedBehaviorSanitizer: `make sanitize`. Prints the largest error and fails above 1e-4.
#include <cmath>
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "batch_norm.h"
#include "half.h"
#include "half_products.h"
#include "im2col.h"
#include "pooling.h"
#include "swish.h"
#include "wide_products.h"
#include "winograd.h"

namespace {

using namespace paceline;
using Array = std::vector<float>;

std::mt19937 generator(0);
double worst = 0;

int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(generator); }

Array random(size_t size) {
  Array values(size);  // of exactly this size, so that a read beyond it is found
  for (float& value : values) value = std::normal_distribution<float>()(generator);
  return values;
}

// Numbers of kernels that take float or Half, and back.
template <typename T>
std::vector<T> images(const Array& values) {
  std::vector<T> result(values.size());
  if constexpr (sizeof(T) == 2)
    half::convert(values.data(), values.size(), result.data());
  else
    result = values;
  return result;
}

template <typename T>
constexpr double limit = sizeof(T) == 2 ? 0x1p-7 : 1e-4;  // results of Half are rounded

template <typename T>
Array floats(const std::vector<T>& values) {
  Array result(values.size());
  if constexpr (sizeof(T) == 2)
    half::convert(values.data(), values.size(), result.data());
  else
    result = values;
  return result;
}

void compare(const char* what, const Array& found, const std::vector<double>& right, double limit = 1e-4) {
  double difference = 0, size = 1e-30;
  for (size_t i = 0; i < right.size(); i++) {
    difference += (found[i] - right[i]) * (found[i] - right[i]);
    size += right[i] * right[i];
  }
  const double error = std::sqrt(difference / size);
  if (limit == 1e-4) worst = std::max(worst, error);
  if (!(error < limit)) {
    std::printf("%s: error %g\n", what, error);
    std::exit(1);
  }
}

struct Plain {
  std::vector<double> y, dx, dfilter;
};

Plain plain_convolution(const im2col::Shape& s, const Array& x, const Array& f, const Array& dy) {
  Plain out{std::vector<double>(dy.size()), std::vector<double>(x.size()), std::vector<double>(f.size())};
  for (int n = 0; n < s.n; n++)
    for (int oy = 0; oy < s.oh; oy++)
      for (int ox = 0; ox < s.ow; ox++)
        for (int i = 0; i < s.kh; i++)
          for (int j = 0; j < s.kw; j++) {
            const int y = oy * s.stride - s.top + i, column = ox * s.stride - s.left + j;
            if (y < 0 || y >= s.h || column < 0 || column >= s.w) continue;
            for (int c = 0; c < s.c; c++)
              for (int k = 0; k < s.k; k++) {
                const size_t a = ((static_cast<size_t>(n) * s.h + y) * s.w + column) * s.c + c;
                const size_t b = ((static_cast<size_t>(i) * s.kw + j) * s.c + c) * s.k + k;
                const size_t o = ((static_cast<size_t>(n) * s.oh + oy) * s.ow + ox) * s.k + k;
                out.y[o] += static_cast<double>(x[a]) * f[b];
                out.dx[a] += static_cast<double>(dy[o]) * f[b];
                out.dfilter[b] += static_cast<double>(x[a]) * dy[o];
              }
          }
  return out;
}

im2col::Shape random_shape(int c, int k, int size, int stride) {
  const int h = between(1, 13), w = between(0, 2) ? between(1, 13) : between(14, 40);
  const int oh = (h + stride - 1) / stride, ow = (w + stride - 1) / stride;
  return {between(1, 4), h, w, c, oh, ow, k, size, size, stride,
          std::max(0, (oh - 1) * stride + size - h) / 2, std::max(0, (ow - 1) * stride + size - w) / 2};
}

template <typename T>
void check_winograd() {
  const im2col::Shape s = random_shape(8 * between(1, 9), 8 * between(1, 9), 3, 1);
  const size_t pixels = static_cast<size_t>(s.n) * s.h * s.w;
  const Array f = random(9u * s.c * s.k);
  const std::vector<T> x = images<T>(random(pixels * s.c)), dy = images<T>(random(pixels * s.k));
  const Plain plain = plain_convolution(s, floats(x), f, floats(dy));
  const winograd::Shape shape{s.n, s.h, s.w, s.c, s.k};
  std::vector<T> y(dy.size()), dx(x.size());
  Array dfilter(f.size());
  winograd::forward(shape, x.data(), f.data(), y.data());
  winograd::input_gradient(shape, dy.data(), f.data(), dx.data());
  winograd::filter_gradient(shape, x.data(), dy.data(), dfilter.data());
  compare("winograd forward", floats(y), plain.y, limit<T>);
  compare("winograd input gradient", floats(dx), plain.dx, limit<T>);
  compare("winograd filter gradient", dfilter, plain.dfilter);
}

im2col::Shape without_padding(im2col::Shape s) {
  s.oh = (s.h - s.kh) / s.stride + 1;
  s.ow = (s.w - s.kw) / s.stride + 1;
  s.top = s.left = 0;
  return s;
}

im2col::Shape random_im2col(bool images) {
  if (between(0, 3) == 0)  // as in a bottleneck: more channels than a block has
    return random_shape(8 * between(25, 45), 8 * between(1, 12), 1, between(1, 2));
  const im2col::Shape s = random_shape(images ? between(1, 5) : 8 * between(1, 8), 8 * between(1, 10), between(1, 7),
                                       between(1, 3));
  return between(0, 1) && s.h >= s.kh && s.w >= s.kw ? without_padding(s) : s;
}

void check_half(const im2col::Shape& s, const Array& exact_x, const Array& exact_f, const Array& exact_dy) {
  const auto x = images<Half>(exact_x), dy = images<Half>(exact_dy);
  const Array f = floats(images<Half>(exact_f));
  const Plain plain = plain_convolution(s, floats(x), f, floats(dy));
  std::vector<Half> y(dy.size()), dx(x.size());
  Array wide(dy.size()), dfilter(f.size());
  half::forward(s, x.data(), f.data(), y.data(), {});
  half::forward(s, x.data(), f.data(), wide.data(), {});
  half::filter_gradient(s, x.data(), dy.data(), dfilter.data());
  compare("bfloat16 forward", floats(y), plain.y, limit<Half>);
  compare("bfloat16 forward to float", wide, plain.y);
  compare("bfloat16 filter gradient", dfilter, plain.dfilter);
  if (s.c % 8) return;
  half::input_gradient(s, dy.data(), f.data(), dx.data(), {});
  compare("bfloat16 input gradient", floats(dx), plain.dx, limit<Half>);
}

void check_im2col() {
  const im2col::Shape s = random_im2col(between(0, 1));
  const size_t pixels = static_cast<size_t>(s.n) * s.h * s.w, outputs = static_cast<size_t>(s.n) * s.oh * s.ow;
  const Array x = random(pixels * s.c), f = random(static_cast<size_t>(s.kh) * s.kw * s.c * s.k),
              dy = random(outputs * s.k);
  const Plain plain = plain_convolution(s, x, f, dy);
  Array y(dy.size()), dx(x.size()), dfilter(f.size());
  im2col::forward(s, x.data(), f.data(), y.data());
  im2col::filter_gradient(s, x.data(), dy.data(), dfilter.data());
  compare("im2col forward", y, plain.y);
  compare("im2col filter gradient", dfilter, plain.dfilter);
  if (s.c % 2 == 0) check_half(s, x, f, dy);
  if (s.c % 8) return;  // the gradient of the input needs channels in multiples of 8
  im2col::input_gradient(s, dy.data(), f.data(), dx.data());
  compare("im2col input gradient", dx, plain.dx);
}

template <typename T>
void check_batch_norm() {
  const batch_norm::Shape s{static_cast<size_t>(between(4, 700)), 8 * between(1, 20)};
  const bool has_residual = between(0, 1);
  const float slope = std::vector<float>{0.f, 0.1f, 1.f}[between(0, 2)];
  const size_t size = s.rows * s.c;
  const std::vector<T> images_x = images<T>(random(size)), images_dy = images<T>(random(size));
  const std::vector<T> images_residual = images<T>(has_residual ? random(size) : Array());
  const Array x = floats(images_x), dy = floats(images_dy), residual = floats(images_residual);
  const Array gamma = random(s.c), beta = random(s.c);
  Array mean(s.c), scale(s.c), variance(s.c), dgamma(s.c), dbeta(s.c);
  std::vector<T> images_y(size), dx(size), dresidual(has_residual ? size : 0);
  batch_norm::Moments moments(s.c);
  const size_t first = between(1, static_cast<int>(s.rows) - 1);  // known before the rest
  moments.add(images_x.data(), first);
  moments.finish(images_x.data(), s.rows, 1e-5f, mean.data(), scale.data(), variance.data());
  batch_norm::forward<T>(s, images_x.data(), has_residual ? images_residual.data() : nullptr, slope, gamma.data(),
                         beta.data(), mean.data(), scale.data(), images_y.data());
  batch_norm::backward<T>(s, images_dy.data(), images_x.data(), has_residual ? images_y.data() : nullptr, slope,
                          gamma.data(), beta.data(), mean.data(), scale.data(), dx.data(),
                          has_residual ? dresidual.data() : nullptr, dgamma.data(), dbeta.data());
  const Array y = floats(images_y);
  std::vector<double> right_y(x.size()), right_dx(x.size()), right_dgamma(s.c), right_dbeta(s.c);
  for (int c = 0; c < s.c; c++) {
    double sum = 0, square = 0;
    for (size_t r = 0; r < s.rows; r++) sum += x[r * s.c + c];
    const double m = sum / s.rows;
    for (size_t r = 0; r < s.rows; r++) square += (x[r * s.c + c] - m) * (x[r * s.c + c] - m);
    const double inverse = 1 / std::sqrt(square / s.rows + 1e-5);
    for (size_t r = 0; r < s.rows; r++) {
      const size_t i = r * s.c + c;
      const double unit = (x[i] - m) * inverse;
      const double z = gamma[c] * unit + beta[c] + (has_residual ? residual[i] : 0);
      right_y[i] = z > 0 ? z : slope * z;
      const double dz = y[i] > 0 ? dy[i] : slope * dy[i];
      right_dgamma[c] += dz * unit;
      right_dbeta[c] += dz;
    }
    for (size_t r = 0; r < s.rows; r++) {
      const size_t i = r * s.c + c;
      const double dz = y[i] > 0 ? dy[i] : slope * dy[i], unit = (x[i] - m) * inverse;
      right_dx[i] = gamma[c] * inverse * (dz - right_dbeta[c] / s.rows - unit * right_dgamma[c] / s.rows);
    }
  }
  compare("batch norm forward", y, right_y, limit<T>);
  compare("batch norm input gradient", floats(dx), right_dx, limit<T>);
  compare("batch norm gamma gradient", dgamma, right_dgamma);
  compare("batch norm beta gradient", dbeta, right_dbeta);
}

void check_swish() {
  const swish::Shape s{static_cast<size_t>(between(1, 700)), 8 * between(1, 9)};
  const float alpha = between(0, 1) ? 1.0f : 1.702f;
  const Array x = random(s.rows * s.c), dy = random(x.size()), factor = random(s.c), offset = random(s.c);
  Array y(x.size()), dz(x.size());
  std::vector<double> sum(s.c), product(s.c), right_y(x.size()), right_dz(x.size()), right_sum(s.c);
  swish::forward(s, x.data(), alpha, factor.data(), offset.data(), y.data());
  swish::backward(s, dy.data(), x.data(), alpha, factor.data(), offset.data(), offset.data(), dz.data(),
                  sum.data(), product.data());
  for (size_t i = 0; i < x.size(); i++) {
    const size_t c = i % s.c;
    const double z = static_cast<double>(factor[c]) * x[i] + offset[c], e = 1 / (1 + std::exp(-alpha * z));
    right_y[i] = z * e;
    right_dz[i] = dy[i] * e * (1 + alpha * z * (1 - e));
    right_sum[c] += right_dz[i];
  }
  compare("swish forward", y, right_y);
  compare("swish gradient", dz, right_dz);
  compare("swish sum of gradients", Array(sum.begin(), sum.end()), right_sum);
}

template <typename T>
void check_pooling() {
  const int h = between(2, 13), w = between(2, 13);
  const pooling::Shape s{between(1, 4), h, w, 8 * between(1, 5), 2, 2, h / 2, w / 2, 0, 0};
  const size_t size = static_cast<size_t>(s.n) * s.h * s.w * s.c;
  const std::vector<T> images_x = images<T>(random(size));
  const std::vector<T> images_dy = images<T>(random(static_cast<size_t>(s.n) * (s.h / 2) * (s.w / 2) * s.c));
  const Array x = floats(images_x), dy = floats(images_dy);
  std::vector<T> y(dy.size()), dx(size);
  std::vector<double> right_y(dy.size()), right_dx(size);
  pooling::forward(s, images_x.data(), y.data());
  pooling::backward(s, images_x.data(), images_dy.data(), dx.data());
  for (size_t o = 0; o < dy.size(); o++) {
    const size_t c = o % s.c, k = o / s.c % (s.w / 2), r = o / s.c / (s.w / 2) % (s.h / 2);
    const size_t n = o / s.c / (s.w / 2) / (s.h / 2);
    size_t most = ((n * s.h + 2 * r) * s.w + 2 * k) * s.c + c;
    const size_t first = most;
    for (const size_t at : {first + s.c, first + s.w * s.c, first + s.w * s.c + s.c})
      if (x[at] > x[most]) most = at;
    right_y[o] = x[most];
    right_dx[most] = dy[o];
  }
  compare("pooling forward", floats(y), right_y);
  compare("pooling gradient", floats(dx), right_dx);
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 200;
  for (int i = 0; i < rounds; i++) {
#ifdef __x86_64__
    wide::used = i % 2 && __builtin_cpu_supports("avx512f");
    half::used = i % 2 && __builtin_cpu_supports("avx512bf16");
#endif
    check_winograd<float>();
    check_winograd<Half>();
    check_im2col();
    check_batch_norm<float>();
    check_batch_norm<Half>();
    check_swish();
    check_pooling<float>();
    check_pooling<Half>();
  }
  std::printf("%d random shapes of each kernel; the largest error is %.1e\n", rounds, worst);
  return 0;
}
