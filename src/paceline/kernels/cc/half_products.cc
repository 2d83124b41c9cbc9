#include "half_products.h"

#include <algorithm>
#include <type_traits>

#include "bfloat16.h"
#include "prefetch.h"
#include "windows.h"

namespace paceline::half {

bool used = false;

template <typename T, typename U>
void convert(const T* x, size_t size, U* y) {
  const size_t rest = size % 8;
  for (size_t i = 0; i < size - rest; i += 8) store(y + i, load(x + i));
  T from[8] = {};
  U to[8];
  std::copy(x + size - rest, x + size, from);
  store(to, load(from));
  std::copy(to, to + rest, y + size - rest);
}

template void convert(const float*, size_t, Half*);
template void convert(const Half*, size_t, float*);

namespace {

using im2col::Shape;

typedef uint32_t Pair;

thread_local Scratch scratch;

constexpr int COLUMNS = 32;                // of a panel
constexpr int ROWS = 12, SUMMED_ROWS = 8;  // of a tile of a product, and of a sum over pixels
constexpr int DEPTH = 512;                 // rows of a filter's gradient at once

// ---- numbers ---------------------------------------------------------------------------------------------------------

// a b + c, rounded once, then flushed. A sum that is too small before it is rounded to the spacing of numbers there
// may reach the smallest normal number by that: the same sum, scaled, tells.
inline V8 flushed_fma(V8 a, V8 b, V8 c) {
  const V8 sum = fma(a, b, c), scaled = fma(a * 0x1p32f, b, c * 0x1p32f);
  return with_sign_only((absolute(sum) <= 0x1p-126f) & (absolute(scaled) < 0x1p-94f), sum);
}

// What VDPBF16PS computes.
inline V8 add_products(V8 sum, U8 a, U8 b) {
  const auto second = [](U8 pair) { return flushed((V8)(pair & 0xffff0000u)); };
  const auto first = [](U8 pair) { return flushed((V8)(pair << 16)); };
  return flushed_fma(first(a), first(b), flushed_fma(second(a), second(b), flushed(sum)));
}

// ---- tiles -----------------------------------------------------------------------------------------------------------

// Row r of a matrix of pairs begins at at[r * row], its numbers are `step` apart.
struct Pairs {
  const Pair* at;
  size_t row, step;
};

#ifdef __x86_64__
#define AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512bf16")))

inline __mmask16 first_lanes(int n) { return n >= 16 ? 0xffff : n > 0 ? (1 << n) - 1 : 0; }

template <int N, typename T>
AVX512_BF16 void multiply_rows(Pairs v, const Pair* panel, int depth, int columns, bool add, T* out, size_t ldo) {
  constexpr bool is_half = sizeof(T) == 2;
  const __mmask16 low = first_lanes(columns), high = first_lanes(columns - 16);
  __m512 sums[N][2];
#pragma GCC unroll 12
  for (int r = 0; r < N; r++) {
    sums[r][0] = add && !is_half ? _mm512_maskz_loadu_ps(low, out + r * ldo) : _mm512_setzero_ps();
    sums[r][1] = add && !is_half ? _mm512_maskz_loadu_ps(high, out + r * ldo + 16) : _mm512_setzero_ps();
  }
#pragma GCC unroll 2
  for (int c = 0; c < depth; c++, panel += COLUMNS, v.at += v.step) {
    const __m512i b = _mm512_loadu_si512(panel), d = _mm512_loadu_si512(panel + 16);
#pragma GCC unroll 12
    for (int r = 0; r < N; r++) {
      const __m512i a = _mm512_set1_epi32(static_cast<int>(v.at[r * v.row]));
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], (__m512bh)a, (__m512bh)b);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], (__m512bh)a, (__m512bh)d);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < N; r++)
    if constexpr (is_half) {
      const auto both = (__m512i)_mm512_cvtne2ps_pbh(sums[r][1], sums[r][0]);
      _mm512_mask_storeu_epi16(out + r * ldo, low | static_cast<__mmask32>(high) << 16, both);
    } else {
      _mm512_mask_storeu_ps(out + r * ldo, low, sums[r][0]);
      _mm512_mask_storeu_ps(out + r * ldo + 16, high, sums[r][1]);
    }
}
#else
template <int N, typename T>
void multiply_rows(Pairs, const Pair*, int, int, bool, T*, size_t) {}
#endif

template <int N, typename T>
void multiply_fast(int rows, Pairs v, const Pair* panel, int depth, int columns, bool add, T* out, size_t ldo) {
  if constexpr (N > 1)
    if (rows < N) return multiply_fast<N - 1>(rows, v, panel, depth, columns, add, out, ldo);
  multiply_rows<N>(v, panel, depth, columns, add, out, ldo);
}

template <typename T>
void multiply_slowly(int rows, Pairs v, const Pair* panel, int depth, int columns, bool add, T* out, size_t ldo) {
  for (int r = 0; r < rows; r++, v.at += v.row, out += ldo)
    for (int q = 0; q < columns; q += 8) {
      V8 sum = add ? load(out + q) : zero();
      for (int c = 0; c < depth; c++)
        sum = add_products(sum, U8{} + v.at[c * v.step],
                           *reinterpret_cast<const U8*>(panel + static_cast<size_t>(c) * COLUMNS + q));
      store(out + q, sum);
    }
}

// out[rows][columns] (+)= v[rows][depth] panel[depth][32], for up to 12 rows and 32 columns; only floats are added to.
template <typename T>
void multiply(int rows, Pairs v, const Pair* panel, int depth, int columns, bool add, T* out, size_t ldo) {
  (used ? multiply_fast<ROWS, T> : multiply_slowly<T>)(rows, v, panel, depth, columns, add, out, ldo);
}

// ---- panels ----------------------------------------------------------------------------------------------------------

// Two rows of numbers, of which the second may be missing: what is above each other is a pair. Eights of them are put
// `distance` apart.
void pair_rows(const Half* first, const Half* second, int numbers, Pair* to, size_t distance) {
  for (int i = 0; i < numbers; i += 8, to += distance) {
    const U8 below = second ? (U8)load(second + i) : U8{};
    store(reinterpret_cast<float*>(to), (V8)((U8)load(first + i) >> 16 | below));
  }
}

int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// A matrix [depth][width] as panels [width / 32][depth / 2][32] of pairs of rows. Floats are rounded, in `rows`.
template <typename T>
void pack(const T* matrix, int depth, int width, Half* rows, Pair* panels) {
  for (int i = 0; i < depth; i += 2, matrix += 2 * static_cast<size_t>(width), panels += COLUMNS) {
    const bool both = i + 1 < depth;
    const Half* first;
    if constexpr (sizeof(T) == 2) {
      first = matrix;
    } else {
      convert(matrix, static_cast<size_t>(both + 1) * width, rows);
      first = rows;
    }
    for (int q = 0; q < width; q += COLUMNS)
      pair_rows(first + q, both ? first + width + q : nullptr, std::min(COLUMNS, width - q),
                panels + static_cast<size_t>(q) * ((depth + 1) / 2), 8);
  }
}

// The same of the transpose of a matrix [width][depth]; `rows` has room for eight of its rows.
void pack_turned(const float* matrix, int depth, int width, Half* rows, Pair* panels) {
  const int pairs = depth / 2, ld = round_up(pairs, 8);
  const auto* pair_at = reinterpret_cast<const float*>(rows);
  for (int q = 0; q < width; q += 8) {
    for (int j = 0; j < 8; j++) convert(matrix + static_cast<size_t>(q + j) * depth, depth, rows + size_t{2} * j * ld);
    Pair* panel = panels + static_cast<size_t>(q / COLUMNS) * pairs * COLUMNS + q % COLUMNS;
    for (int i = 0; i < pairs; i += 8) {
      V8 r[8];
      for (int j = 0; j < 8; j++) r[j] = load(pair_at + static_cast<size_t>(j) * ld + i);
      transpose8(r);
      for (int j = 0; j < std::min(8, pairs - i); j++, panel += COLUMNS) store(reinterpret_cast<float*>(panel), r[j]);
    }
  }
}

size_t panel_pairs(int depth, int width) { return static_cast<size_t>(round_up(width, COLUMNS)) * ((depth + 1) / 2); }

// ---- blocks of pixels ------------------------------------------------------------------------------------------------

size_t num_pixels(const Shape& s) { return static_cast<size_t>(s.n) * s.oh * s.ow; }
bool is_plain(const Shape& s) { return s.kh * s.kw == 1 && s.stride == 1 && s.c % 8 == 0; }

// Pixels whose rows of pairs and outputs stay in the L2 cache.
int block_pixels(size_t pixels, int depth, int width) {
  const size_t fits = std::clamp<size_t>((384 << 10) / (depth + width), 48, 384);
  const size_t blocks = (pixels + fits - 1) / fits;
  return round_up(static_cast<int>((pixels + blocks - 1) / blocks), ROWS);
}

Pair* take(size_t pairs) { return reinterpret_cast<Pair*>(scratch.take(pairs)); }

// Fetches the pixels [first, first + count) of a matrix [pixels][width], as far as there are some, within `turns`.
Prefetch ahead(const Half* matrix, size_t pixels, size_t width, size_t first, size_t count, size_t turns) {
  const size_t begin = std::min(first, pixels), end = std::min(first + count, pixels);
  return Prefetch(Prefetch::READ, matrix + begin * width, (end - begin) * width, turns);
}

// Tiles of a product.
size_t num_tiles(size_t rows, int most_rows, size_t width) {
  return (rows + most_rows - 1) / most_rows * ((width + COLUMNS - 1) / COLUMNS);
}

// Inputs for each output pixel, as far as they are worth fetching ahead: none if most of the input is left out.
size_t read_ahead(const Shape& s) {
  return s.kh < s.stride ? 0 : static_cast<size_t>(s.h) * s.w * s.c / (static_cast<size_t>(s.oh) * s.ow);
}

// What is under the kernel at pixels [first, first + count), from numbers [from, to) of a row, as pairs: as it is in
// memory, or copied to v.
struct Rows {
  const Pair* at;
  size_t ld;

  Rows(const Shape& s, const Half* x, size_t first, int count, int from, int to, Pair* v) {
    at = reinterpret_cast<const Pair*>(x) + (first * s.c + from) / 2;
    ld = s.c / 2;
    if (is_plain(s)) return;
    Shape pairs = s;  // copied as floats
    pairs.c /= 2;
    ld = (to - from) / 2;
    im2col::gather(pairs, reinterpret_cast<const float*>(x), first, count, from / 2, to / 2, static_cast<int>(ld),
                   reinterpret_cast<float*>(v));
    at = v;
  }
};

// out[count][width] = v[count][depth] panels. What the next block reads is fetched meanwhile.
template <typename T>
void multiply_block(int count, int depth, int width, const Pair* panels, const Rows& v, T* out, Prefetch next) {
  const T* end = out + static_cast<size_t>(count) * width;
  for (int q = 0; q < width; q += COLUMNS)
    for (int first = 0; first < count; first += ROWS) {
      const T* soon = out + static_cast<size_t>(first + ROWS) * width + q;  // the next tile
      for (int r = 0; r < ROWS; r++, soon += width)
        for (size_t e = 0; e < COLUMNS && soon < end; e += 64 / sizeof(T)) __builtin_prefetch(soon + e, 1, 3);
      next.turn();
      multiply(std::min(ROWS, count - first), {v.at + first * v.ld, v.ld, 1}, panels + static_cast<size_t>(q) * depth / 2,
               depth / 2, std::min(COLUMNS, width - q), false, out + static_cast<size_t>(first) * width + q, width);
    }
}

}  // namespace

template <typename T>
void forward(const Shape& s, const Half* x, const float* filter, T* y, const Done& done) {
  const int depth = s.kh * s.kw * s.c, block = block_pixels(num_pixels(s), depth, s.k);
  Pair* panels = take(panel_pairs(depth, s.k) + static_cast<size_t>(block) * depth / 2 + s.k);
  Pair *rows = panels + panel_pairs(depth, s.k), *memory = rows + s.k;
  pack(filter, depth, s.k, reinterpret_cast<Half*>(rows), panels);
  for (size_t first = 0; first < num_pixels(s); first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, num_pixels(s) - first));
    multiply_block(count, depth, s.k, panels, Rows(s, x, first, count, 0, depth, memory), y + first * s.k,
                   ahead(x, num_pixels(s), read_ahead(s), first + block, block, num_tiles(count, ROWS, s.k)));
    if (done) done(first, count);
  }
}

template void forward(const Shape&, const Half*, const float*, float*, const Done&);
template void forward(const Shape&, const Half*, const float*, Half*, const Done&);

// Where outputs share inputs, these are added in float32: of some images at once, then rounded.
void input_gradient(const Shape& s, const Half* dy, const float* filter, Half* dx, const Done& done) {
  const int width = s.kh * s.kw * s.c, per_image = s.oh * s.ow;
  const int images = is_plain(s) ? s.n : std::clamp(384 / per_image, 1, s.n);
  const size_t pixels = static_cast<size_t>(images) * per_image, inputs = static_cast<size_t>(s.h) * s.w * s.c;
  const int block = block_pixels(pixels, s.k, is_plain(s) ? width : 2 * width);
  const size_t results = is_plain(s) ? 0 : static_cast<size_t>(block) * width;
  const size_t eight_rows = 8 * static_cast<size_t>(round_up(s.k / 2, 8));
  Pair* panels = take(panel_pairs(s.k, width) + eight_rows + results + (is_plain(s) ? 0 : images * inputs));
  Pair* rows_of_filter = panels + panel_pairs(s.k, width);
  float* m = reinterpret_cast<float*>(rows_of_filter + eight_rows);
  pack_turned(filter, s.k, width, reinterpret_cast<Half*>(rows_of_filter), panels);
  Shape some = s;
  some.kh = some.kw = some.stride = 1;  // of dy, as the input of a product
  some.c = s.k;
  for (int image = 0; image < s.n; image += images) {
    const size_t begin = static_cast<size_t>(image) * per_image;
    const size_t end = std::min(begin + pixels, static_cast<size_t>(s.n) * per_image);
    const size_t sums = std::min(images, s.n - image) * inputs;
    if (!is_plain(s)) std::fill(m + results, m + results + sums, 0.f);
    for (size_t first = begin; first < end; first += block) {
      const int count = static_cast<int>(std::min<size_t>(block, end - first));
      const Rows rows(some, dy, first, count, 0, s.k, nullptr);
      const Prefetch next = ahead(dy, num_pixels(s), s.k, first + count, block, num_tiles(count, ROWS, width));
      if (is_plain(s)) {
        multiply_block(count, s.k, width, panels, rows, dx + first * s.c, next);
        if (done) done(first, count);
      } else {
        multiply_block(count, s.k, width, panels, rows, m, next);
        im2col::scatter(s, m, first - begin, count, 0, s.kh, m + results);
      }
    }
    if (is_plain(s)) continue;
    convert(m + results, sums, dx + image * inputs);
    if (done) done(static_cast<size_t>(image) * s.h * s.w, sums / s.c);
  }
}

// Blocks have an even number of pixels, so that a pair is the same pixels in any block.
void filter_gradient(const Shape& s, const Half* x, const Half* dy, float* dfilter) {
  const int rows = s.kh * s.kw * s.c;
  const size_t pixels = num_pixels(s), blocks = (pixels + 399) / 400;
  const int block = round_up(static_cast<int>((pixels + blocks - 1) / blocks), 2);
  const size_t part_pairs = static_cast<size_t>(block / 2) * DEPTH;
  Pair* panels = take(panel_pairs(block, s.k) + part_pairs * 2 + 8);
  Pair* parts = panels + panel_pairs(block, s.k);
  for (size_t first = 0; first < pixels; first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, pixels - first)), depth = (count + 1) / 2;
    const size_t turns = num_tiles(rows, SUMMED_ROWS, s.k);
    Prefetch images = ahead(x, pixels, read_ahead(s), first + block, block, turns);
    Prefetch gradients = ahead(dy, pixels, s.k, first + block, block, turns);
    pack(dy + first * s.k, count, s.k, nullptr, panels);
    for (int from = 0; from < rows; from += DEPTH) {
      const int some = std::min(DEPTH, rows - from);
      const Rows under(s, x, first, count, from, from + some, parts + part_pairs);
      const Half* row = reinterpret_cast<const Half*>(under.at);
      for (int i = 0; i < depth; i++, row += 4 * under.ld)
        pair_rows(row, 2 * i + 1 < count ? row + 2 * under.ld : nullptr, some,
                  parts + static_cast<size_t>(i) * SUMMED_ROWS, static_cast<size_t>(depth) * SUMMED_ROWS);
      for (int q = 0; q < s.k; q += COLUMNS)
        for (int r = 0; r < some; r += SUMMED_ROWS) {
          float* sums = dfilter + static_cast<size_t>(from + r) * s.k + q;
          const float* soon = sums + static_cast<size_t>(SUMMED_ROWS) * s.k;
          for (int i = 0; i < SUMMED_ROWS && r + SUMMED_ROWS < some; i++, soon += s.k)
            for (int e = 0; e < COLUMNS; e += 16) __builtin_prefetch(soon + e, 1, 3);
          images.turn();
          gradients.turn();
          multiply(std::min(SUMMED_ROWS, some - r), {parts + static_cast<size_t>(r) * depth, 1, SUMMED_ROWS},
                   panels + static_cast<size_t>(q) * depth, depth, std::min(COLUMNS, s.k - q), first > 0, sums, s.k);
        }
    }
  }
}

}  // namespace paceline::half
