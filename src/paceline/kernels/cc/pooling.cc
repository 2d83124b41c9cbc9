#include "pooling.h"

#include <algorithm>
#include <cstring>

#include "bfloat16.h"

namespace paceline::pooling {
namespace {

inline V8 largest(V8 a, V8 b, V8 c, V8 d) {
  return max(max(a, b), max(c, d));
}

inline I8 same(V8 a, V8 b) { return a == b; }

bool is_plain(const Shape& s) { return s.size == 2 && s.stride == 2 && !s.top && !s.left && s.oh == s.h / 2; }

// Calls body(first row, end of rows, first column, end of columns) for the window of each output pixel of an image.
template <typename F>
inline void for_windows(const Shape& s, F body) {
  for (int oy = 0; oy < s.oh; oy++)
    for (int ox = 0; ox < s.ow; ox++) {
      const int y = oy * s.stride - s.top, x = ox * s.stride - s.left;
      body(std::max(0, y), std::min(s.h, y + s.size), std::max(0, x), std::min(s.w, x + s.size));
    }
}

// The maximum over a window of eight channels.
template <typename T>
inline V8 window_maximum(const Shape& s, const T* image, int y0, int y1, int x0, int x1) {
  V8 most = load(image + (static_cast<size_t>(y0) * s.w + x0) * s.c);
  for (int y = y0; y < y1; y++)
    for (int x = x0; x < x1; x++) most = max(load(image + (static_cast<size_t>(y) * s.w + x) * s.c), most);
  return most;
}

}  // namespace

template <typename T>
void forward(const Shape& s, const T* x, T* y) {
  if (!is_plain(s)) {
    for (int i = 0; i < s.n; i++, x += static_cast<size_t>(s.h) * s.w * s.c)
      for_windows(s, [&](int y0, int y1, int x0, int x1) {
        for (int q = 0; q < s.c; q += 8) store(y + q, window_maximum(s, x + q, y0, y1, x0, x1));
        y += s.c;
      });
    return;
  }
  const size_t c = s.c, line = s.w * c;
  for (int i = 0; i < s.n; i++, x += s.h * line)
    for (int r = 0; r < s.h / 2; r++) {
      const T* from = x + 2 * r * line;
      for (int k = 0; k < s.w / 2; k++, from += 2 * c, y += c)
        for (size_t q = 0; q < c; q += 8)
          store(y + q, largest(load(from + q), load(from + c + q), load(from + line + q),
                               load(from + line + c + q)));
    }
}

template <typename T>
void backward(const Shape& s, const T* x, const T* dy, T* dx) {
  if (!is_plain(s)) {
    const size_t image = static_cast<size_t>(s.h) * s.w * s.c;
    std::memset(dx, 0, s.n * image * sizeof(T));
    for (int i = 0; i < s.n; i++, x += image, dx += image)
      for_windows(s, [&](int y0, int y1, int x0, int x1) {
        for (int q = 0; q < s.c; q += 8) {
          const V8 most = window_maximum(s, x + q, y0, y1, x0, x1);
          V8 left = load(dy + q);  // what no earlier maximum of the window took
          for (int r = y0; r < y1; r++)
            for (int k = x0; k < x1; k++) {
              const size_t at = (static_cast<size_t>(r) * s.w + k) * s.c + q;
              const I8 is_most = same(load(x + at), most);
              store(dx + at, load(dx + at) + where(is_most, left));
              left = where(~is_most, left);
            }
        }
        dy += s.c;
      });
    return;
  }
  const size_t c = s.c, line = s.w * c;
  for (int i = 0; i < s.n; i++, x += s.h * line, dx += s.h * line) {
    for (int r = 0; r < s.h / 2; r++) {
      const T* from = x + 2 * r * line;
      T* to = dx + 2 * r * line;
      for (int k = 0; k < s.w / 2; k++, from += 2 * c, to += 2 * c, dy += c)
        for (size_t q = 0; q < c; q += 8) {
          const V8 v0 = load(from + q), v1 = load(from + c + q), v2 = load(from + line + q),
                   v3 = load(from + line + c + q), most = largest(v0, v1, v2, v3);
          V8 left = load(dy + q);  // what no earlier maximum of the window took
          const I8 is0 = same(v0, most), is1 = same(v1, most), is2 = same(v2, most);
          store(to + q, where(is0, left));
          left = where(~is0, left);
          store(to + c + q, where(is1, left));
          left = where(~is1, left);
          store(to + line + q, where(is2, left));
          store(to + line + c + q, where(~is2, left));
        }
      if (s.w % 2)
        for (int b = 0; b < 2; b++)
          std::memset(dx + (2 * r + b) * line + (s.w - 1) * c, 0, c * sizeof(T));
    }
    if (s.h % 2) std::memset(dx + (s.h - 1) * line, 0, line * sizeof(T));
  }
}

template void forward(const Shape&, const float*, float*);
template void forward(const Shape&, const Half*, Half*);
template void backward(const Shape&, const float*, const float*, float*);
template void backward(const Shape&, const Half*, const Half*, Half*);

}  // namespace paceline::pooling
