#include "im2col.h"

#include <algorithm>
#include <cstring>

#include "long_rows.h"
#include "prefetch.h"
#include "simd.h"

namespace paceline::im2col {
namespace {

thread_local Scratch scratch;

// A product [pixels x depth] [depth x channels] goes in blocks. The part of the inputs in a block is copied to scratch
// memory, DEPTH wide, and stays in the L2 cache; a panel of 16 columns of the filter, DEPTH high, in the L1 cache.
constexpr int DEPTH = 256;

size_t num_pixels(const Shape& s) { return static_cast<size_t>(s.n) * s.oh * s.ow; }

// Pixels of a block: few enough for the L2 cache, or, where the filter itself is larger than that, as many as it
// takes to make up for fetching it.
int block_pixels(size_t pixels, size_t depth, size_t width) {
  constexpr size_t least = 48, most = 384, cache = 192 << 10;  // floats
  const size_t fits = cache / (std::min<size_t>(depth, DEPTH) + width);
  const size_t wanted = depth * width > cache ? most : std::clamp(fits, least, most);
  const size_t blocks = (pixels + wanted - 1) / wanted, even = (pixels + blocks - 1) / blocks;
  return static_cast<int>((even + 5) / 6 * 6);
}

inline void copy(const float* from, int n, float* to) {
  if (n < 8) {
    for (int i = 0; i < n; i++) to[i] = from[i];
    return;
  }
  for (int i = 0; i + 8 <= n; i += 8) store(to + i, load(from + i));
  if (n % 8) store(to + n - 8, load(from + n - 8));
}

// ---- the inputs under the kernel ------------------------------------------------------------------------------------

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

// The other way, for one row of the kernel: adds rows [kw][c] to the inputs under it.
void scatter(const Shape& s, const float* in, size_t first, int count, int row, float* dx) {
  Window window(s, first);
  for (int i = 0; i < count; i++, in += s.kw * s.c, window.next()) {
    if (!window.has_row(row)) continue;
    float* to = const_cast<float*>(window.row(dx, row));
    for (int j = window.first_column() * s.c; j < window.last_column() * s.c; j += 8)
      store(to + j, _mm256_add_ps(load(to + j), load(in + j)));
  }
}

// ---- products of a block ----------------------------------------------------------------------------------------------

// Rows [from, to) of 16 columns (or 8) of a matrix [used][width] as a panel; rows from `used` on are zeros.
void pack_panel(const float* matrix, int used, int width, int q, int from, int to, float* panel) {
  const int columns = std::min(16, width - q);
  for (int i = from; i < to; i++, panel += columns)
    for (int e = 0; e < columns; e += 8)
      store(panel + e, i < used ? load(matrix + static_cast<size_t>(i) * width + q + e) : zero());
}

// The same of the transpose of a matrix [width][depth].
void pack_turned_panel(const float* matrix, int depth, int width, int q, int from, int to, float* panel) {
  const int columns = std::min(16, width - q);
  for (int e = 0; e < columns; e += 8)
    for (int i = from; i < to; i += 8) {
      V8 r[8];
      for (int j = 0; j < 8; j++) r[j] = load(matrix + static_cast<size_t>(q + e + j) * depth + i);
      transpose8(r);
      for (int j = 0; j < 8; j++) store(panel + (i - from + j) * columns + e, r[j]);
    }
}

// out[count][width] = v[count][depth] panels, where gather(from, to, v) copies a part of the rows and
// pack(q, from, to, panel) makes a panel. `memory` has room for both.
template <typename G, typename P>
void multiply_block(int count, int depth, int width, float* memory, G gather, P pack, float* out) {
  float *panel = memory, *v = memory + DEPTH * 16;
  for (int from = 0; from < depth; from += DEPTH) {
    const int to = std::min(from + DEPTH, depth), some = to - from;
    gather(from, to, v);
    for (int q = 0; q < width; q += 16) {
      pack(q, from, to, panel);
      const float* soon = out + q + 6 * static_cast<size_t>(width);
      const float* end = out + static_cast<size_t>(count) * width;
      const auto fetch = [&] {  // the outputs of the next six rows
        for (int i = 0; i < 6; i++, soon += width)
          if (soon < end) __builtin_prefetch(soon, 1, 3);
      };
      const auto multiply = width - q >= 16 ? (from ? multiply_all<2, true, decltype(fetch)> : multiply_all<2, false, decltype(fetch)>)
                                            : (from ? multiply_all<1, true, decltype(fetch)> : multiply_all<1, false, decltype(fetch)>);
      multiply(count, v, some, panel, some, out + q, width, fetch);
    }
  }
}

size_t block_memory(int pixels) { return static_cast<size_t>(DEPTH) * (16 + pixels); }

// Columns [from, to) of rows [count][ld] at `first` to v.
void copy_rows(const float* rows, size_t ld, int count, int from, int to, float* v) {
  for (int i = 0; i < count; i++) copy(rows + i * ld + from, to - from, v + static_cast<size_t>(i) * (to - from));
}

// ---- sums over pixels --------------------------------------------------------------------------------------------------

constexpr int PART = 6;  // rows of a filter's gradient at a time

// Columns [0, width) of rows [count][ld] as panels [width / 16][count][16], the last of 8 columns if need be.
void pack_panels(const float* rows, int count, int width, float* panels) {
  for (int q = 0; q < width; q += 16) {
    const int columns = std::min(16, width - q);
    for (int i = 0; i < count; i++, panels += columns)
      for (int e = 0; e < columns; e += 8) store(panels + e, load(rows + static_cast<size_t>(i) * width + q + e));
  }
}

// Columns [0, width) of v[count][ld] as parts [width / 6][count][6]. Reads and writes up to 7 floats beyond both.
void pack_parts(const float* v, int ld, int count, int width, float* parts) {
  for (int first = 0; first < width; first += PART) {
    const int some = std::min(PART, width - first);
    const float* from = v + first;
    for (int i = 0; i < count; i++, from += ld, parts += some) store(parts, load(from));  // what follows is written later
  }
}

// u[rows][width] (+)= sums over pixels of parts and panels.
void correlate_packed(const float* parts, const float* panels, int count, int rows, int width, bool add, float* u) {
  for (int q = 0; q < width; q += 16) {
    const int columns = std::min(16, width - q);
    const float* panel = panels + static_cast<size_t>(q) * count;
    for (int first = 0; first < rows; first += PART) {
      const int some = std::min(PART, rows - first);
      const float* part = parts + static_cast<size_t>(first) * count;
      float* to = u + static_cast<size_t>(first) * width + q;
      for (int i = PART; i < std::min(2 * PART, rows - first); i++) __builtin_prefetch(to + static_cast<size_t>(i) * width, 1, 3);
      if (columns == 16)
        correlate_rows<2>(some, part, some, panel, 16, count, to, width, add);
      else
        correlate_rows<1>(some, part, some, panel, 8, count, to, width, add);
    }
  }
}

}  // namespace

void forward(const Shape& s, const float* x, const float* filter, float* y, const Done& done) {
  if (long_rows::serves(s)) return long_rows::forward(s, x, filter, y, done);
  const int used = s.kh * s.kw * s.c, depth = (used + 7) / 8 * 8;
  const int block = block_pixels(num_pixels(s), depth, s.k);
  float* memory = scratch.take(block_memory(block));
  const auto pack = [&](int q, int from, int to, float* panel) { pack_panel(filter, used, s.k, q, from, to, panel); };
  for (size_t first = 0; first < num_pixels(s); first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, num_pixels(s) - first));
    const auto rows = [&](int from, int to, float* v) { gather(s, x, first, count, from, to, to - from, v); };
    multiply_block(count, depth, s.k, memory, rows, pack, y + first * s.k);
    if (done) done(first, count);
  }
}

void input_gradient(const Shape& s, const float* dy, const float* filter, float* dx, const Done& done) {
  const int line = s.kw * s.c;
  const int block = block_pixels(num_pixels(s), s.k, line);
  const bool whole = s.kh * s.kw == 1 && s.stride == 1;  // each input belongs to one output
  const size_t inputs = static_cast<size_t>(s.n) * s.h * s.w;
  float* memory = scratch.take(block_memory(block) + (whole ? 0 : static_cast<size_t>(block) * line));
  float* m = memory + block_memory(block);
  if (!whole) std::fill(dx, dx + inputs * s.c, 0.f);
  for (size_t first = 0; first < num_pixels(s); first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, num_pixels(s) - first));
    const auto rows = [&](int from, int to, float* v) { copy_rows(dy + first * s.k, s.k, count, from, to, v); };
    for (int row = 0; row < s.kh; row++) {
      const float* matrix = filter + static_cast<size_t>(row) * line * s.k;
      const auto pack = [&](int q, int from, int to, float* panel) {
        pack_turned_panel(matrix, s.k, line, q, from, to, panel);
      };
      multiply_block(count, s.k, line, memory, rows, pack, whole ? dx + first * s.c : m);
      if (!whole) scatter(s, m, first, count, row, dx);
    }
    if (whole && done) done(first, count);
  }
  if (!whole && done) done(0, inputs);
}

void filter_gradient(const Shape& s, const float* x, const float* dy, float* dfilter) {
  if (long_rows::serves(s)) return long_rows::filter_gradient(s, x, dy, dfilter);
  const int rows = s.kh * s.kw * s.c;
  const size_t pixels = num_pixels(s);
  const bool few = s.k <= 64;  // gradients that stay in the L1 cache as they are
  const size_t blocks = (pixels + 399) / 400;
  const int block = few ? 96 : static_cast<int>((pixels + blocks - 1) / blocks);
  float* v = scratch.take(static_cast<size_t>(block) * (2 * DEPTH + s.k) + 16);
  float *parts = v + static_cast<size_t>(block) * DEPTH, *panels = parts + static_cast<size_t>(block) * DEPTH + 8;
  for (size_t first = 0; first < pixels; first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, pixels - first));
    if (!few) pack_panels(dy + first * s.k, count, s.k, panels);
    for (int from = 0; from < rows; from += DEPTH) {
      const int some = std::min(DEPTH, rows - from);
      float* to = dfilter + static_cast<size_t>(from) * s.k;
      gather(s, x, first, count, from, from + some, some, v);
      if (few) {
        correlate_all(some, s.k, v, some, dy + first * s.k, s.k, count, to, s.k, first > 0, [] {});
        continue;
      }
      pack_parts(v, some, count, some, parts);
      correlate_packed(parts, panels, count, some, s.k, first > 0, to);
    }
  }
}

}  // namespace paceline::im2col
