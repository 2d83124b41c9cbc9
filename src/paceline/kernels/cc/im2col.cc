#include "im2col.h"

#include <algorithm>
#include <cstring>

#include "simd.h"

namespace paceline::im2col {
namespace {

thread_local Scratch scratch;

constexpr int BLOCK = 48;  // output pixels at a time
constexpr size_t REPORT = 16 * BLOCK;  // output pixels between two calls of `done`

const auto nothing = [] {};

inline void copy(const float* from, int n, float* to) {
  if (n < 8) {
    for (int i = 0; i < n; i++) to[i] = from[i];
    return;
  }
  for (int i = 0; i + 8 <= n; i += 8) store(to + i, load(from + i));
  if (n % 8) store(to + n - 8, load(from + n - 8));
}

size_t num_pixels(const Shape& s) { return static_cast<size_t>(s.n) * s.oh * s.ow; }

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

  // The part of each row of the kernel that is inside the image.
  int first_column() const { return std::max(0, -x()); }
  int last_column() const { return std::min(s_.kw, s_.w - x()); }
  bool has_row(int r) const { return y() + r >= 0 && y() + r < s_.h; }
  bool is_inside() const { return x() >= 0 && y() >= 0 && y() + s_.kh <= s_.h && x() + s_.kw <= s_.w; }

  // Where row r, column `column` of the kernel is in the input.
  size_t at(int r, int column) const {
    return ((image_ * s_.h + y() + r) * s_.w + x() + column) * s_.c;
  }

 private:
  int y() const { return oy_ * s_.stride - s_.top; }
  int x() const { return ox_ * s_.stride - s_.left; }

  const Shape& s_;
  size_t image_;
  int oy_, ox_;
};

// Rows of `out` are the inputs under the kernel at output pixels [first, first + count), filled up with zeros to `ld`.
void gather(const Shape& s, const float* x, size_t first, int count, int ld, float* out) {
  const int line = s.kw * s.c, used = s.kh * line;
  Window window(s, first);
  for (int i = 0; i < count; i++, out += ld, window.next()) {
    if (window.is_inside()) {
      for (int r = 0; r < s.kh; r++) copy(x + window.at(r, 0), line, out + r * line);
      std::fill(out + used, out + ld, 0.f);
      continue;
    }
    std::fill(out, out + ld, 0.f);
    const int from = window.first_column(), to = window.last_column();
    for (int r = 0; r < s.kh; r++)
      if (window.has_row(r) && to > from)
        copy(x + window.at(r, from), (to - from) * s.c, out + r * line + from * s.c);
  }
}

// The other way: adds rows to the inputs under the kernel.
void scatter(const Shape& s, const float* in, size_t first, int count, int ld, float* dx) {
  Window window(s, first);
  for (int i = 0; i < count; i++, in += ld, window.next()) {
    const int from = window.first_column(), to = window.last_column();
    for (int r = 0; r < s.kh; r++) {
      if (!window.has_row(r) || to <= from) continue;
      float* row = dx + window.at(r, from);
      const float* at = in + (r * s.kw + from) * s.c;
      for (int j = 0; j < (to - from) * s.c; j += 8)
        store(row + j, _mm256_add_ps(load(row + j), load(at + j)));
    }
  }
}

// A matrix whose element (i, o) is at i di + o dq, as panels[out / 16][in][16]; rows from `used` on are zeros.
void pack(const float* matrix, size_t di, size_t dq, int used, int in, int out, float* panels) {
  for (int q = 0; q < out; q += 16) {
    const int width = std::min(16, out - q);
    for (int i = 0; i < in; i++)
      for (int e = 0; e < width; e++) *panels++ = i < used ? matrix[i * di + (q + e) * dq] : 0.f;
  }
}

// ---- long rows, without im2col --------------------------------------------------------------------------------------

// Rows of at least this many output pixels are computed from an image with zeros around it, where the windows of
// neighbouring pixels overlap: nothing is copied per pixel. Short rows would leave too little for the registers.
constexpr int LONG_ROW = 16;

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
        const V8 a = _mm256_broadcast_ss(v + r * step);
#pragma GCC unroll 2
        for (int q = 0; q < VECTORS; q++) sums[r][q] = _mm256_fmadd_ps(a, b[q], sums[r][q]);
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

void forward_rows(const Shape& s, const float* x, const float* filter, float* y, const Done& done) {
  const Padded p(s);
  const int depth = s.kh * s.kw * s.c;
  float* panels = scratch.take(static_cast<size_t>(depth) * s.k + p.floats());
  float* padded = panels + static_cast<size_t>(depth) * s.k;
  pack(filter, s.k, 1, depth, depth, s.k, panels);
  size_t reported = 0;
  for (int row = 0; row < s.n * s.oh; row++) {
    const int oy = row % s.oh;
    if (oy == 0) p.fill(s, x + static_cast<size_t>(row / s.oh) * s.h * s.w * s.c, padded);
    const float* window = padded + static_cast<size_t>(oy) * s.stride * p.row;
    const size_t pixel = static_cast<size_t>(row) * s.ow, last = pixel + s.ow;
    for (int q = 0; q < s.k; q += 16) {
      const auto multiply = s.k - q >= 16 ? multiply_row<2> : multiply_row<1>;
      multiply(window, p, s, panels + static_cast<size_t>(q) * depth, y + pixel * s.k + q);
    }
    if (done && (last - reported >= REPORT || last == num_pixels(s))) {
      done(reported, last - reported);
      reported = last;
    }
  }
}

void filter_gradient_rows(const Shape& s, const float* x, const float* dy, float* dfilter) {
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

}  // namespace

void forward(const Shape& s, const float* x, const float* filter, float* y, const Done& done) {
  if (s.ow >= LONG_ROW) return forward_rows(s, x, filter, y, done);
  const int used = s.kh * s.kw * s.c, in = (used + 7) / 8 * 8;
  float* panels = scratch.take(static_cast<size_t>(in) * (s.k + BLOCK));
  float* v = panels + static_cast<size_t>(in) * s.k;
  pack(filter, s.k, 1, used, in, s.k, panels);
  size_t reported = 0;
  for (size_t first = 0; first < num_pixels(s); first += BLOCK) {
    const int count = static_cast<int>(std::min<size_t>(BLOCK, num_pixels(s) - first));
    gather(s, x, first, count, in, v);
    multiply_panels(count, v, in, panels, in, s.k, y + first * s.k, s.k, nothing);
    const size_t last = first + count;
    if (done && (last - reported >= REPORT || last == num_pixels(s))) {
      done(reported, last - reported);
      reported = last;
    }
  }
}

void input_gradient(const Shape& s, const float* dy, const float* filter, float* dx) {
  const int out = s.kh * s.kw * s.c;
  float* panels = scratch.take(static_cast<size_t>(out) * (s.k + BLOCK));
  float* m = panels + static_cast<size_t>(out) * s.k;
  pack(filter, 1, s.k, s.k, s.k, out, panels);
  std::fill(dx, dx + static_cast<size_t>(s.n) * s.h * s.w * s.c, 0.f);
  for (size_t first = 0; first < num_pixels(s); first += BLOCK) {
    const int count = static_cast<int>(std::min<size_t>(BLOCK, num_pixels(s) - first));
    multiply_panels(count, dy + first * s.k, s.k, panels, s.k, out, m, out, nothing);
    scatter(s, m, first, count, out, dx);
  }
}

void filter_gradient(const Shape& s, const float* x, const float* dy, float* dfilter) {
  if (s.ow >= LONG_ROW) return filter_gradient_rows(s, x, dy, dfilter);
  const int rows = s.kh * s.kw * s.c, in = (rows + 7) / 8 * 8;
  float* v = scratch.take(static_cast<size_t>(in) * 2 * BLOCK);
  for (size_t first = 0; first < num_pixels(s); first += 2 * BLOCK) {
    const int count = static_cast<int>(std::min<size_t>(2 * BLOCK, num_pixels(s) - first));
    gather(s, x, first, count, in, v);
    correlate_all(rows, s.k, v, in, dy + first * s.k, s.k, count, dfilter, s.k, first > 0, nothing);
  }
}

}  // namespace paceline::im2col
