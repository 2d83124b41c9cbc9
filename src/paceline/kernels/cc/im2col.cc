#include "im2col.h"

#include <algorithm>
#include <cstring>

#include "simd.h"

namespace paceline::im2col {
namespace {

thread_local Scratch scratch;

constexpr int BLOCK = 48;  // output pixels at a time

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

}  // namespace

void forward(const Shape& s, const float* x, const float* filter, float* y) {
  const int used = s.kh * s.kw * s.c, in = (used + 7) / 8 * 8;
  float* panels = scratch.take(static_cast<size_t>(in) * (s.k + BLOCK));
  float* v = panels + static_cast<size_t>(in) * s.k;
  pack(filter, s.k, 1, used, in, s.k, panels);
  for (size_t first = 0; first < num_pixels(s); first += BLOCK) {
    const int count = static_cast<int>(std::min<size_t>(BLOCK, num_pixels(s) - first));
    gather(s, x, first, count, in, v);
    multiply_panels(count, v, in, panels, in, s.k, y + first * s.k, s.k, nothing);
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
  const int rows = s.kh * s.kw * s.c, in = (rows + 7) / 8 * 8;
  float* v = scratch.take(static_cast<size_t>(in) * 2 * BLOCK);
  for (size_t first = 0; first < num_pixels(s); first += 2 * BLOCK) {
    const int count = static_cast<int>(std::min<size_t>(2 * BLOCK, num_pixels(s) - first));
    gather(s, x, first, count, in, v);
    correlate_all(rows, s.k, v, in, dy + first * s.k, s.k, count, dfilter, s.k, first > 0, nothing);
  }
}

}  // namespace paceline::im2col
