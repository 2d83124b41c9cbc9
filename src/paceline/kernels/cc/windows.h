// The inputs under the kernel of a convolution, as rows of a matrix and back.
#pragma once

#include <algorithm>
#include <cstddef>

#include "im2col.h"
#include "simd.h"

namespace paceline::im2col {
namespace {

inline void copy(const float* from, int n, float* to) {
  if (n < 8) {
    for (int i = 0; i < n; i++) to[i] = from[i];
    return;
  }
  for (int i = 0; i + 8 <= n; i += 8) store(to + i, load(from + i));
  if (n % 8) store(to + n - 8, load(from + n - 8));
}

// Walks over the output pixels in their order, and knows which part of the input is under the kernel.
class Window {
 public:
  Window(const Shape& shape, size_t pixel) : s_(shape) {
    const size_t per_image = static_cast<size_t>(s_.oh) * s_.ow;
    image_ = pixel / per_image;
    oy_ = static_cast<int>(pixel % per_image) / s_.ow;
    ox_ = static_cast<int>(pixel % per_image) % s_.ow;
  }

  void next() {
    if (++ox_ < s_.ow) return;
    ox_ = 0;
    if (++oy_ < s_.oh) return;
    oy_ = 0;
    image_++;
  }

  // The part of each row of the kernel that is inside the image, in columns; and whether a row is.
  int first_column() const { return std::max(0, -x()); }
  int last_column() const { return std::min(s_.kw, s_.w - x()); }
  bool has_row(int row) const { return y() + row >= 0 && y() + row < s_.h; }

  // Where this row of the kernel is in the input.
  const float* row(const float* input, int row) const {
    return input + (static_cast<ptrdiff_t>((image_ * s_.h + y() + row) * s_.w) + x()) * s_.c;
  }

 private:
  int y() const { return oy_ * s_.stride - s_.top; }
  int x() const { return ox_ * s_.stride - s_.left; }

  const Shape& s_;
  size_t image_;
  int oy_, ox_;
};

// Rows of `out` are inputs [from, to) of the [kh][kw][c] under the kernel at output pixels [first, first + count),
// filled up with zeros to `ld`.
void gather(const Shape& s, const float* x, size_t first, int count, int from, int to, int ld, float* out) {
  const int line = s.kw * s.c, used = s.kh * line;
  for (int at = from; at < std::min(to, used);) {  // a row of the kernel, or a part of it
    const int row = at / line, begin = at % line, end = std::min(line, begin + to - at);
    float* o = out + (at - from);
    Window window(s, first);
    for (int i = 0; i < count; i++, o += ld, window.next()) {
      const int inside = std::clamp(window.first_column() * s.c, begin, end);
      const int outside = window.has_row(row) ? std::clamp(window.last_column() * s.c, inside, end) : inside;
      std::fill(o, o + (inside - begin), 0.f);
      copy(window.row(x, row) + inside, outside - inside, o + (inside - begin));
      std::fill(o + (outside - begin), o + (end - begin), 0.f);
    }
    at += end - begin;
  }
  if (to > used)
    for (int i = 0; i < count; i++) std::fill(out + i * ld + used - from, out + (i + 1) * ld, 0.f);
}

// The other way, for rows [from, to) of the kernel: adds rows [to - from][kw][c] to the inputs under them.
void scatter(const Shape& s, const float* in, size_t first, int count, int from, int to, float* dx) {
  Window window(s, first);
  for (int i = 0; i < count; i++, window.next())
    for (int row = from; row < to; row++, in += s.kw * s.c) {
      if (!window.has_row(row)) continue;
      float* out = const_cast<float*>(window.row(dx, row));
      for (int j = window.first_column() * s.c; j < window.last_column() * s.c; j += 8)
        store(out + j, load(out + j) + load(in + j));
    }
}

}  // namespace
}  // namespace paceline::im2col
