#include "resize.h"

#include <algorithm>
#include <cmath>

namespace paceline::resize {

Filter::Filter(int inputs, int outputs, bool antialias) : first(outputs), weights(outputs) {
  const double step = static_cast<double>(inputs) / outputs, radius = antialias ? std::max(1.0, step) : 1.0;
  for (int i = 0; i < outputs; i++) {
    const double center = (i + 0.5) * step - 0.5;
    first[i] = std::max(0, static_cast<int>(std::ceil(center - radius)));
    const int last = std::min(inputs - 1, static_cast<int>(std::floor(center + radius)));
    std::vector<double> found;
    double total = 0;
    for (int j = first[i]; j <= last; j++) {
      found.push_back(std::max(0.0, 1 - std::abs(j - center) / radius));
      total += found.back();
    }
    for (const double each : found) weights[i].push_back(static_cast<float>(each / total));
  }
}

// Three channels, which most images have, as a constant: then a pixel stays in registers.
template <int channels>
void along_columns(const float* x, int c, const Filter& columns, float* y) {
  if (channels) c = channels;
  for (size_t j = 0; j < columns.first.size(); j++, y += c) {
    const float* pixel = x + static_cast<size_t>(columns.first[j]) * c;
    if (channels) {
      float sums[channels + !channels] = {};
      for (const float weight : columns.weights[j])
        for (int k = 0; k < channels; k++) sums[k] = std::fma(weight, *pixel++, sums[k]);
      std::copy(sums, sums + channels, y);
    } else {
      std::fill(y, y + c, 0.f);
      for (const float weight : columns.weights[j])
        for (int k = 0; k < c; k++) y[k] = std::fma(weight, *pixel++, y[k]);
    }
  }
}

template <typename T>
void image(const T* x, int w, int c, const Filter& rows, const Filter& columns, float* y) {
  const size_t line = static_cast<size_t>(w) * c, wide = columns.first.size();
  std::vector<float> between(line);
  for (size_t i = 0; i < rows.first.size(); i++) {
    std::fill(between.begin(), between.end(), 0.f);
    const T* from = x + rows.first[i] * line;
    for (const float weight : rows.weights[i]) {
      for (size_t k = 0; k < line; k++) between[k] = std::fma(weight, static_cast<float>(from[k]), between[k]);
      from += line;
    }
    (c == 3 ? along_columns<3> : along_columns<0>)(between.data(), c, columns, y);
    y += wide * c;
  }
}

template void image(const uint8_t*, int, int, const Filter&, const Filter&, float*);
template void image(const float*, int, int, const Filter&, const Filter&, float*);

}  // namespace paceline::resize
