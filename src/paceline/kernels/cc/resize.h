// Images resized with a triangle filter (bilinear), in a fixed order: first along columns, then along rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline::resize {

// For each output: the first input under the filter, and the weights of the inputs, which sum to one.
struct Filter {
  std::vector<int> first;
  std::vector<std::vector<float>> weights;

  // With `antialias`, the filter of a smaller output is as much wider.
  Filter(int inputs, int outputs, bool antialias);
};

// y[tall][wide][c] from x[h][w][c]; T is uint8_t or float.
template <typename T>
void image(const T* x, int w, int c, const Filter& rows, const Filter& columns, float* y);

}  // namespace paceline::resize
