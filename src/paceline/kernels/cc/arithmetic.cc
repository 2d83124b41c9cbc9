#include "arithmetic.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "functions.h"

namespace paceline::arithmetic {
namespace {

template <typename F>
void for_each(size_t n, const float* a, bool a_steps, const float* b, bool b_steps, float* y, F compute) {
  const V8 first_a = set(*a), first_b = set(*b);
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    store(y + i, compute(a_steps ? load(a + i) : first_a, b_steps ? load(b + i) : first_b));
  for (; i < n; i++) y[i] = compute(set(a[a_steps ? i : 0]), set(b[b_steps ? i : 0]))[0];
}

double logarithm(double x) {
  if (!(x > 0) || std::isinf(x)) return x == 0 ? -HUGE_VAL : x < 0 ? NAN : x;
  int exponent;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) m *= 2, exponent--;
  const double t = (m - 1) / (m + 1), square = t * t;  // ln m = 2 (t + t^3 / 3 + t^5 / 5 + ...), |t| < 0.172
  double series = 0;
  for (int k = 27; k > 0; k -= 2) series = series * square + 1.0 / k;
  return exponent * 0.69314718055994531 + 2 * t * series;
}

}  // namespace

void binary(Binary kind, size_t n, const float* a, bool a_steps, const float* b, bool b_steps, float* y) {
  const auto run = [&](auto compute) { for_each(n, a, a_steps, b, b_steps, y, compute); };
  switch (kind) {
    case ADD: return run([](V8 u, V8 v) { return u + v; });
    case SUBTRACT: return run([](V8 u, V8 v) { return u - v; });
    case MULTIPLY: return run([](V8 u, V8 v) { return u * v; });
    case DIVIDE: return run([](V8 u, V8 v) { return u / v; });
    case WHERE_POSITIVE: return run([](V8 u, V8 v) { return where(u > 0, v); });
  }
}

void unary(Unary kind, size_t n, const float* x, float* y) {
  switch (kind) {
    case SQUARE_ROOT:
      for (size_t i = 0; i < n; i++) y[i] = std::sqrt(x[i]);
      break;
    case EXPONENTIAL: return for_each(n, x, true, x, true, y, [](V8 u, V8) { return exponential(u); });
    case LOGARITHM:
      for (size_t i = 0; i < n; i++) y[i] = static_cast<float>(logarithm(x[i]));
  }
}

void sum(size_t outer, size_t n, size_t inner, double divisor, const float* x, float* y) {
  const bool folds = inner == 1;
  const size_t lanes = folds ? 8 : inner;
  std::vector<double> sums(lanes);
  for (size_t o = 0; o < outer; o++, x += n * inner, y += inner) {
    std::fill(sums.begin(), sums.end(), 0.0);
    size_t i = 0;
    for (; i + lanes <= n * inner; i += lanes)
      for (size_t k = 0; k < lanes; k++) sums[k] += x[i + k];
    for (size_t k = 0; i + k < n * inner; k++) sums[k] += x[i + k];
    if (folds)
      for (size_t k = 1; k < lanes; k++) sums[0] += sums[k];
    for (size_t k = 0; k < inner; k++) y[k] = static_cast<float>(sums[k] / divisor);
  }
}

void cross_entropy(size_t rows, int classes, const float* logits, const float* targets, float* losses,
                   float* gradients) {
  std::vector<float> shifted(classes);
  for (size_t r = 0; r < rows; r++, logits += classes, targets += classes, gradients += classes) {
    float largest = logits[0];
    for (int i = 1; i < classes; i++) largest = logits[i] > largest ? logits[i] : largest;
    for (int i = 0; i < classes; i++) shifted[i] = logits[i] - largest;
    unary(EXPONENTIAL, classes, shifted.data(), gradients);
    double total = 0, loss = 0;
    for (int i = 0; i < classes; i++) total += gradients[i];
    const double log_total = logarithm(total);
    for (int i = 0; i < classes; i++) {
      loss += targets[i] * (log_total - shifted[i]);
      gradients[i] = static_cast<float>(gradients[i] / total - targets[i]);
    }
    losses[r] = static_cast<float>(loss);
  }
}

}  // namespace paceline::arithmetic
