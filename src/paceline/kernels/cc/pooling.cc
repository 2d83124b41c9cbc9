#include "pooling.h"

#include <cstring>

#include "simd.h"

namespace paceline::pooling {
namespace {

inline V8 largest(V8 a, V8 b, V8 c, V8 d) {
  return _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
}

inline V8 same(V8 a, V8 b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }

}  // namespace

void forward(const Shape& s, const float* x, float* y) {
  const size_t c = s.c, line = s.w * c;
  for (int i = 0; i < s.n; i++, x += s.h * line)
    for (int r = 0; r < s.h / 2; r++) {
      const float* from = x + 2 * r * line;
      for (int k = 0; k < s.w / 2; k++, from += 2 * c, y += c)
        for (size_t q = 0; q < c; q += 8)
          store(y + q, largest(load(from + q), load(from + c + q), load(from + line + q),
                               load(from + line + c + q)));
    }
}

void backward(const Shape& s, const float* x, const float* dy, float* dx) {
  const size_t c = s.c, line = s.w * c;
  for (int i = 0; i < s.n; i++, x += s.h * line, dx += s.h * line) {
    for (int r = 0; r < s.h / 2; r++) {
      const float* from = x + 2 * r * line;
      float* to = dx + 2 * r * line;
      for (int k = 0; k < s.w / 2; k++, from += 2 * c, to += 2 * c, dy += c)
        for (size_t q = 0; q < c; q += 8) {
          const V8 v0 = load(from + q), v1 = load(from + c + q), v2 = load(from + line + q),
                   v3 = load(from + line + c + q), most = largest(v0, v1, v2, v3);
          V8 left = load(dy + q);  // what no earlier maximum of the window took
          const V8 is0 = same(v0, most), is1 = same(v1, most), is2 = same(v2, most);
          store(to + q, _mm256_and_ps(is0, left));
          left = _mm256_andnot_ps(is0, left);
          store(to + c + q, _mm256_and_ps(is1, left));
          left = _mm256_andnot_ps(is1, left);
          store(to + line + q, _mm256_and_ps(is2, left));
          store(to + line + c + q, _mm256_andnot_ps(is2, left));
        }
      if (s.w % 2)
        for (int b = 0; b < 2; b++)
          std::memset(dx + (2 * r + b) * line + (s.w - 1) * c, 0, c * sizeof(float));
    }
    if (s.h % 2) std::memset(dx + (s.h - 1) * line, 0, line * sizeof(float));
  }
}

}  // namespace paceline::pooling
