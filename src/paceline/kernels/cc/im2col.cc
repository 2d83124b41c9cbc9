#include "im2col.h"

#include <algorithm>

#include "long_rows.h"
#include "prefetch.h"
#include "simd.h"
#include "windows.h"

namespace paceline::im2col {
namespace {

thread_local Scratch scratch;

// A product [pixels x depth] [depth x channels] goes in blocks. The part of the inputs in a block is copied to scratch
// memory, DEPTH wide, and stays in the L2 cache; a panel of 16 columns of the filter, DEPTH high, in the L1 cache.
constexpr int DEPTH = 256;

size_t num_pixels(const Shape& s) { return static_cast<size_t>(s.n) * s.oh * s.ow; }

// Whether each output belongs to one input, as in a product of matrices: 1x1 without padding, and channels that need
// no filling up.
bool is_plain(const Shape& s) { return s.kh * s.kw == 1 && s.stride == 1 && s.c % 8 == 0; }

// Pixels of a block: few enough for the L2 cache, or, where the filter itself is larger than that, as many as it
// takes to make up for fetching it.
int block_pixels(size_t pixels, size_t depth, size_t width) {
  constexpr size_t least = 48, most = 384, cache = 192 << 10;  // floats
  const size_t fits = cache / (std::min<size_t>(depth, DEPTH) + width);
  const size_t wanted = depth * width > cache ? most : std::clamp(fits, least, most);
  const size_t blocks = (pixels + wanted - 1) / wanted, even = (pixels + blocks - 1) / blocks;
  return static_cast<int>((even + 5) / 6 * 6);
}

// ---- products of a block --------------------------------------------------------------------------------------------

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

// Rows of a matrix, `ld` floats apart.
struct Rows {
  const float* at;
  size_t ld;
};

// Fetches what the pixels [first, first + count) read, `floats` of which belong to `pixels`, within `turns`.
Prefetch ahead(const float* from, size_t floats, size_t pixels, size_t first, size_t count, size_t turns) {
  const size_t each = floats / pixels, begin = std::min(first * each, floats);
  return Prefetch(Prefetch::READ, from + begin, std::min(count * each, floats - begin), turns);
}

// The floats of the input that are worth fetching ahead: none if the kernel leaves out most of it.
size_t read_floats(const Shape& s) {
  return s.kh < s.stride ? 0 : static_cast<size_t>(s.n) * s.h * s.w * s.c;
}

size_t num_turns(size_t a, size_t b, size_t c) { return ((a + 5) / 6) * ((b + 15) / 16) * ((c + DEPTH - 1) / DEPTH); }

// out[count][width] = v[count][depth] panels, where gather(from, to, v) returns a part of the rows, which
// it may copy to v, and pack(q, from, to, panel) makes a panel. `memory` has room for both. What the next block reads is fetched meanwhile.
template <typename G, typename P>
void multiply_block(int count, int depth, int width, float* memory, G gather, P pack, float* out, Prefetch& next) {
  float* panel = memory;
  for (int from = 0; from < depth; from += DEPTH) {
    const int to = std::min(from + DEPTH, depth), some = to - from;
    const Rows v = gather(from, to, memory + DEPTH * wide::COLUMNS);
    for (int q = 0, columns; q < width; q += columns) {
      columns = next_columns(width - q);
      for (int e = 0; e < columns; e += 16) pack(q + e, from, to, panel + static_cast<size_t>(e) * some);
      const int rows = most_rows(columns) / turns_of(columns);
      const float* soon = out + q + most_rows(columns) * static_cast<size_t>(width);
      const float* end = out + static_cast<size_t>(count) * width;
      const auto fetch = [&] {  // the outputs of the next product
        for (int i = 0; i < rows; i++, soon += width)
          for (int e = 0; e < columns && soon < end; e += 16) __builtin_prefetch(soon + e, 1, 3);
        next.turn();
      };
      const auto multiply = from ? multiply_columns<true, decltype(fetch)> : multiply_columns<false, decltype(fetch)>;
      multiply(columns, count, v.at, v.ld, panel, some, out + q, width, fetch);
    }
  }
}

size_t block_memory(int pixels) { return static_cast<size_t>(DEPTH) * (wide::COLUMNS + pixels); }

// Columns [from, to) of matrix[count][ld]: as they are, or copied to v if more than a few panels use them.
Rows part_of(const float* matrix, size_t ld, int count, int from, int to, int width, float* v) {
  constexpr int few = 128;  // columns; with more, the copy paid
  if (width <= few) return {matrix + from, ld};
  const int some = to - from;
  for (int i = 0; i < count; i++) copy(matrix + i * ld + from, some, v + static_cast<size_t>(i) * some);
  return {v, static_cast<size_t>(some)};
}

// ---- sums over pixels -----------------------------------------------------------------------------------------------

// Rows of a filter's gradient at a time.
int part_rows() { return most_rows(next_columns(wide::COLUMNS)); }

// Columns [0, width) of rows [count][ld] as panels [width / 16][count][16], the last of 8 columns if need be.
void pack_panels(const float* rows, int count, int width, float* panels) {
  for (int q = 0; q < width; q += 16) {
    const int columns = std::min(16, width - q);
    for (int i = 0; i < count; i++, panels += columns)
      for (int e = 0; e < columns; e += 8) store(panels + e, load(rows + static_cast<size_t>(i) * width + q + e));
  }
}

// Columns [0, width) of v[count][ld] as parts [width / 6][count][6], or of 12. Reads and writes up to 7 floats beyond
// both.
void pack_parts(const float* v, int ld, int count, int width, float* parts) {
  for (int first = 0; first < width; first += part_rows()) {
    const int some = std::min(part_rows(), width - first);
    const float* from = v + first;
    // Each store spoils what follows it, which is written later.
    for (int i = 0; i < count; i++, from += ld, parts += some)
      for (int e = 0; e < some; e += 8) store(parts + e, load(from + e));
  }
}

// u[rows][width] (+)= sums over pixels of parts and panels.
template <typename F>
void correlate_packed(const float* parts, const float* panels, int count, int rows, int width, bool add, float* u,
                      F fetch) {
  for (int q = 0, columns; q < width; q += columns) {
    columns = next_columns(width - q);
    const float* panel = panels + static_cast<size_t>(q) * count;
    const int line = std::min(columns, 16), most = most_rows(columns);
    for (int first = 0; first < rows; first += part_rows()) {
      const int some = std::min(part_rows(), rows - first);
      const float* part = parts + static_cast<size_t>(first) * count;
      float* to = u + static_cast<size_t>(first) * width + q;
      for (int i = some; i < std::min(2 * some, rows - first); i++)
        for (int e = 0; e < columns; e += 16) __builtin_prefetch(to + static_cast<size_t>(i) * width + e, 1, 3);
      for (int i = 0; i < turns_of(columns); i++) fetch();
      for (int r = 0; r < some; r += most)
        correlate_columns(columns, std::min(most, some - r), part + r, some, panel, line,
                          static_cast<size_t>(line) * count, count, to + static_cast<size_t>(r) * width, width, add);
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
    const auto rows = [&](int from, int to, float* v) -> Rows {
      if (is_plain(s)) return part_of(x + first * s.c, s.c, count, from, to, s.k, v);
      gather(s, x, first, count, from, to, to - from, v);
      return {v, static_cast<size_t>(to - from)};
    };
    Prefetch next = ahead(x, read_floats(s), num_pixels(s), first + count, block, num_turns(count, s.k, depth));
    multiply_block(count, depth, s.k, memory, rows, pack, y + first * s.k, next);
    if (done) done(first, count);
  }
}

void input_gradient(const Shape& s, const float* dy, const float* filter, float* dx, const Done& done) {
  constexpr size_t cache = 256 << 10;  // floats
  const int line = s.kw * s.c;
  const int block = block_pixels(num_pixels(s), s.k, s.kh * line);
  const bool whole = is_plain(s);
  const int at_once = static_cast<size_t>(block) * s.kh * line <= cache ? s.kh : 1;  // rows of the kernel
  const size_t inputs = static_cast<size_t>(s.n) * s.h * s.w;
  float* memory = scratch.take(block_memory(block) + (whole ? 0 : static_cast<size_t>(block) * at_once * line));
  float* m = memory + block_memory(block);
  if (!whole) std::fill(dx, dx + inputs * s.c, 0.f);
  for (size_t first = 0; first < num_pixels(s); first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, num_pixels(s) - first));
    const auto rows = [&](int from, int to, float* v) {
      return part_of(dy + first * s.k, s.k, count, from, to, at_once * line, v);
    };
    const size_t pixels = num_pixels(s), turns = num_turns(count, s.kh * line, s.k);
    Prefetch next = ahead(dy, pixels * s.k, pixels, first + count, block, turns);
    // From the last row up: each input then takes what it gets in the order of the output pixels.
    for (int row = s.kh - at_once; row >= 0; row -= at_once) {
      const float* matrix = filter + static_cast<size_t>(row) * line * s.k;
      const auto pack = [&](int q, int from, int to, float* panel) {
        pack_turned_panel(matrix, s.k, at_once * line, q, from, to, panel);
      };
      multiply_block(count, s.k, at_once * line, memory, rows, pack, whole ? dx + first * s.c : m, next);
      if (!whole) scatter(s, m, first, count, row, row + at_once, dx);
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
    const size_t turns = num_turns(rows, s.k, 1);
    Prefetch inputs = ahead(x, read_floats(s), pixels, first + count, block, turns);
    Prefetch gradients = ahead(dy, pixels * s.k, pixels, first + count, block, turns);
    const auto fetch = [&] {
      inputs.turn();
      gradients.turn();
    };
    if (!few) pack_panels(dy + first * s.k, count, s.k, panels);
    for (int from = 0; from < rows; from += DEPTH) {
      const int some = std::min(DEPTH, rows - from);
      float* to = dfilter + static_cast<size_t>(from) * s.k;
      gather(s, x, first, count, from, from + some, some, v);
      if (few) {
        correlate_all(some, s.k, v, some, dy + first * s.k, s.k, count, to, s.k, first > 0, fetch);
        continue;
      }
      pack_parts(v, some, count, some, parts);
      correlate_packed(parts, panels, count, some, s.k, first > 0, to, fetch);
    }
  }
}

}  // namespace paceline::im2col
