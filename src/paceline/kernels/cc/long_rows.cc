#include "long_rows.h"

#include <algorithm>
#include <cstring>

#include "simd.h"

namespace paceline::long_rows {
namespace {

using im2col::Shape;

thread_local Scratch scratch;

constexpr size_t REPORT = 768;  // output pixels between two calls of `done`

const auto nothing = [] {};

// A matrix [depth][width] as panels[width / 16][depth][16], the last of 8 columns if need be.
void pack(const float* matrix, int depth, int width, float* panels) {
  for (int q = 0; q < width; q += 16)
    for (int i = 0; i < depth; i++)
      for (int e = q; e < std::min(q + 16, width); e += 8, panels += 8)
        store(panels, load(matrix + static_cast<size_t>(i) * width + e));
}

// An image with the zeros around it that SAME padding means, in scratch memory.
struct Padded {
  int h, w;     // so that every window is inside
  size_t row;   // floats

  explicit Padded(const Shape& s)
      : h((s.oh - 1) * s.stride + s.kh), w((s.ow - 1) * s.stride + s.kw), row(static_cast<size_t>(w) * s.c) {}

  size_t floats() const { return h * row; }

  void fill(const Shape& s, const float* image, float* out) const {
    const size_t line = static_cast<size_t>(s.w) * s.c, left = static_cast<size_t>(s.left) * s.c;
    const size_t used = std::min(line, row - left);
    for (int y = -s.top; y < h - s.top; y++, out += row) {
      const bool inside = y >= 0 && y < s.h;
      std::fill(out, out + (inside ? left : row), 0.f);
      if (!inside) continue;
      std::memcpy(out + left, image + y * line, used * sizeof(float));
      std::fill(out + left + used, out + row, 0.f);
    }
  }
};

// ROWS neighbouring pixels: m[ROWS][8 VECTORS] = sum over the rows of the kernel of window[ROWS][depth] panel.
template <int ROWS, int VECTORS>
void multiply_windows(const float* window, size_t step, const Padded& p, const Shape& s,
                      const float* panel, float* m) {
  const int lines = s.kh, depth = s.kw * s.c;
  const size_t row = p.row, ldm = s.k;
  V8 sums[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int q = 0; q < VECTORS; q++) sums[r][q] = zero();
  for (int i = 0; i < lines; i++, window += row) {
    const float* v = window;
#pragma GCC unroll 4
    for (int e = 0; e < depth; e++) {
      V8 b[VECTORS];
#pragma GCC unroll 2
      for (int q = 0; q < VECTORS; q++) b[q] = load(panel + 8 * q);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const V8 a = set(*(v + r * step));
#pragma GCC unroll 2
        for (int q = 0; q < VECTORS; q++) sums[r][q] = fma(a, b[q], sums[r][q]);
      }
      v++;
      panel += 8 * VECTORS;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int q = 0; q < VECTORS; q++) store(m + r * ldm + 8 * q, sums[r][q]);
}

template <int VECTORS>
void multiply_row(const float* window, const Padded& p, const Shape& s, const float* panel, float* y) {
  const size_t step = static_cast<size_t>(s.stride) * s.c;
  for (int pixels = s.ow; pixels > 0;) {
    const int some = pixels == 6 || pixels >= 12 ? 6 : pixels > 6 ? (pixels + 1) / 2 : pixels;
    const auto kernel = some == 6   ? multiply_windows<6, VECTORS>
                        : some == 5 ? multiply_windows<5, VECTORS>
                        : some == 4 ? multiply_windows<4, VECTORS>
                        : some == 3 ? multiply_windows<3, VECTORS>
                        : some == 2 ? multiply_windows<2, VECTORS>
                                    : multiply_windows<1, VECTORS>;
    kernel(window, step, p, s, panel, y);
    window += some * step;
    y += static_cast<size_t>(some) * s.k;
    pixels -= some;
  }
}

// The same with AVX-512, 32 columns of two panels at a time.
void multiply_wide_row(const float* window, const Padded& p, const Shape& s, const float* panel, float* y) {
  const int line = s.kw * s.c;
  for (int pixel = 0, some; pixel < s.ow; pixel += some)
    for (int i = 0; i < s.kh; i++) {
      some = std::min(wide::ROWS, s.ow - pixel);
      wide::multiply(i > 0, some, wide::COLUMNS, window + i * p.row + static_cast<size_t>(pixel) * s.stride * s.c,
                     static_cast<size_t>(s.stride) * s.c, panel + static_cast<size_t>(i) * line * 16,
                     static_cast<size_t>(s.kh) * line * 16, line, y + static_cast<size_t>(pixel) * s.k, s.k);
    }
}

}  // namespace

void forward(const Shape& s, const float* x, const float* filter, float* y, const Done& done) {
  const Padded p(s);
  const int depth = s.kh * s.kw * s.c;
  float* panels = scratch.take(static_cast<size_t>(depth) * s.k + p.floats());
  float* padded = panels + static_cast<size_t>(depth) * s.k;
  pack(filter, depth, s.k, panels);
  size_t reported = 0;
  const size_t pixels = static_cast<size_t>(s.n) * s.oh * s.ow;
  for (int row = 0; row < s.n * s.oh; row++) {
    const int oy = row % s.oh;
    if (oy == 0) p.fill(s, x + static_cast<size_t>(row / s.oh) * s.h * s.w * s.c, padded);
    const float* window = padded + static_cast<size_t>(oy) * s.stride * p.row;
    const size_t pixel = static_cast<size_t>(row) * s.ow, last = pixel + s.ow;
    for (int q = 0, columns; q < s.k; q += columns) {
      columns = next_columns(s.k - q);
      const auto multiply = columns == wide::COLUMNS ? multiply_wide_row
                            : columns == 16          ? multiply_row<2>
                                                     : multiply_row<1>;
      multiply(window, p, s, panels + static_cast<size_t>(q) * depth, y + pixel * s.k + q);
    }
    if (done && (last - reported >= REPORT || last == pixels)) {
      done(reported, last - reported);
      reported = last;
    }
  }
}

void filter_gradient(const Shape& s, const float* x, const float* dy, float* dfilter) {
  const Padded p(s);
  float* padded = scratch.take(p.floats());
  const int rows = s.kw * s.c;
  for (int row = 0; row < s.n * s.oh; row++) {
    const int oy = row % s.oh;
    if (oy == 0) p.fill(s, x + static_cast<size_t>(row / s.oh) * s.h * s.w * s.c, padded);
    for (int i = 0; i < s.kh; i++)
      correlate_all(rows, s.k, padded + (static_cast<size_t>(oy) * s.stride + i) * p.row,
                    static_cast<size_t>(s.stride) * s.c, dy + static_cast<size_t>(row) * s.ow * s.k, s.k,
                    s.ow, dfilter + static_cast<size_t>(i) * rows * s.k, s.k, row > 0, nothing);
  }
}

}  // namespace paceline::long_rows
