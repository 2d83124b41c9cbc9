#include "half_products.h"

#include <algorithm>
#include <type_traits>

#include "prefetch.h"
#include "simd.h"
#include "windows.h"

namespace paceline::half {

bool used = false;

namespace {

using im2col::Shape;

typedef uint32_t Pair;
typedef uint32_t U8 __attribute__((vector_size(32), may_alias));
typedef uint16_t Halves8 __attribute__((vector_size(16), aligned(2), may_alias));

thread_local Scratch scratch;

constexpr int DEPTH = 512;    // the part of a row that is multiplied at once
constexpr int COLUMNS = 32;   // of a panel
constexpr int ROWS = 12, SUMMED_ROWS = 8;  // of a tile of a product, and of a sum over pixels

// ---- numbers ---------------------------------------------------------------------------------------------------------

inline V8 with_sign_only(I8 mask, V8 x) { return (V8)((U8)x & (~(U8)mask | 0x80000000u)); }
inline V8 absolute(V8 x) { return (V8)((U8)x & 0x7fffffffu); }

// Zero, with its sign, in place of a number below the smallest normal one.
inline V8 flushed(V8 x) { return with_sign_only(absolute(x) < 0x1p-126f, x); }

// Flushed, and rounded to nearest, ties to even: the upper halves are bfloat16. What is not a number stays so.
inline U8 rounded(V8 x) {
  const U8 bits = (U8)flushed(x), is_number = (U8)(x == x);
  return (is_number & (bits + 0x7fff + (bits >> 16 & 1))) | (~is_number & (bits | 0x400000));
}

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

template <int N>
AVX512_BF16 void multiply_rows(Pairs v, const Pair* panel, int depth, int columns, bool add, float* out, size_t ldo) {
  const __mmask16 low = columns >= 16 ? 0xffff : (1 << columns) - 1;
  const __mmask16 high = columns >= 32 ? 0xffff : columns > 16 ? (1 << (columns - 16)) - 1 : 0;
  __m512 sums[N][2];
#pragma GCC unroll 12
  for (int r = 0; r < N; r++) {
    sums[r][0] = add ? _mm512_maskz_loadu_ps(low, out + r * ldo) : _mm512_setzero_ps();
    sums[r][1] = add ? _mm512_maskz_loadu_ps(high, out + r * ldo + 16) : _mm512_setzero_ps();
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
  for (int r = 0; r < N; r++) {
    _mm512_mask_storeu_ps(out + r * ldo, low, sums[r][0]);
    _mm512_mask_storeu_ps(out + r * ldo + 16, high, sums[r][1]);
  }
}
#else
template <int N>
void multiply_rows(Pairs, const Pair*, int, int, bool, float*, size_t) {}
#endif

template <int N = ROWS>
void multiply_fast(int rows, Pairs v, const Pair* panel, int depth, int columns, bool add, float* out, size_t ldo) {
  if constexpr (N > 1)
    if (rows < N) return multiply_fast<N - 1>(rows, v, panel, depth, columns, add, out, ldo);
  multiply_rows<N>(v, panel, depth, columns, add, out, ldo);
}

void multiply_slowly(int rows, Pairs v, const Pair* panel, int depth, int columns, bool add, float* out, size_t ldo) {
  for (int r = 0; r < rows; r++, v.at += v.row, out += ldo)
    for (int q = 0; q < columns; q += 8) {
      V8 sum = add ? load(out + q) : zero();
      for (int c = 0; c < depth; c++)
        sum = add_products(sum, U8{} + v.at[c * v.step],
                           *reinterpret_cast<const U8*>(panel + static_cast<size_t>(c) * COLUMNS + q));
      store(out + q, sum);
    }
}

// out[rows][columns] (+)= v[rows][depth] panel[depth][32], for up to 12 rows and 32 columns.
void multiply(int rows, Pairs v, const Pair* panel, int depth, int columns, bool add, float* out, size_t ldo) {
  (used ? multiply_fast<> : multiply_slowly)(rows, v, panel, depth, columns, add, out, ldo);
}

// ---- floats to pairs -------------------------------------------------------------------------------------------------

#ifdef __x86_64__
inline __mmask16 first_lanes(int n) { return n >= 16 ? 0xffff : n > 0 ? (1 << n) - 1 : 0; }

AVX512_BF16 void pair_row_fast(const float* from, int floats, Pair* to) {
  for (int i = 0; i < floats; i += 32, from += 32, to += 16) {
    const __m512 low = _mm512_maskz_loadu_ps(first_lanes(floats - i), from);
    const __m512 high = _mm512_maskz_loadu_ps(first_lanes(floats - i - 16), from + 16);
    _mm512_mask_storeu_epi32(to, first_lanes((floats - i) / 2), (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
}

AVX512_BF16 void pair_rows_fast(const float* first, const float* second, int floats, Pair* to, size_t distance) {
  alignas(64) constexpr uint16_t order[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i above_each_other = _mm512_load_si512(order);
  for (int i = 0; i < floats; i += 16, to += 2 * distance) {
    const __mmask16 lanes = first_lanes(floats - i);
    const __m512 low = _mm512_maskz_loadu_ps(lanes, first + i);
    const __m512 high = second ? _mm512_maskz_loadu_ps(lanes, second + i) : _mm512_setzero_ps();
    const __m512i both = _mm512_permutexvar_epi16(above_each_other, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(both));
    if (floats - i > 8) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + distance), _mm512_extracti64x4_epi64(both, 1));
  }
}
#else
void pair_row_fast(const float*, int, Pair*) {}
void pair_rows_fast(const float*, const float*, int, Pair*, size_t) {}
#endif

// A row of floats, a multiple of 8: neighbours are a pair.
void pair_row(const float* from, int floats, Pair* to) {
  if (used) return pair_row_fast(from, floats, to);
  auto* out = reinterpret_cast<uint16_t*>(to);
  for (int i = 0; i < floats; i += 8)
    *reinterpret_cast<Halves8*>(out + i) = __builtin_convertvector(rounded(load(from + i)) >> 16, Halves8);
}

// Two rows of floats, of which the second may be missing: what is above each other is a pair. Eights of them are put
// `distance` apart.
void pair_rows(const float* first, const float* second, int floats, Pair* to, size_t distance) {
  if (used) return pair_rows_fast(first, second, floats, to, distance);
  for (int i = 0; i < floats; i += 8, to += distance) {
    const U8 below = rounded(second ? load(second + i) : zero());
    *reinterpret_cast<Unaligned8*>(to) = (V8)(rounded(load(first + i)) >> 16 | (below & 0xffff0000u));
  }
}

int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// A matrix [depth][width] as panels [width / 32][depth / 2][32] of pairs of rows.
void pack(const float* matrix, int depth, int width, Pair* panels) {
  for (int q = 0; q < width; q += COLUMNS)
    for (int i = 0; i < depth; i += 2, panels += COLUMNS) {
      const float* row = matrix + static_cast<size_t>(i) * width + q;
      pair_rows(row, i + 1 < depth ? row + width : nullptr, std::min(COLUMNS, width - q), panels, 8);
    }
}

// The same of the transpose of a matrix [width][depth]. `rows` has room for eight of its rows.
void pack_turned(const float* matrix, int depth, int width, Pair* rows, Pair* panels) {
  const int pairs = depth / 2, ld = round_up(pairs, 8);
  for (int q = 0; q < width; q += 8) {
    for (int j = 0; j < 8; j++) pair_row(matrix + static_cast<size_t>(q + j) * depth, depth, rows + static_cast<size_t>(j) * ld);
    Pair* panel = panels + static_cast<size_t>(q / COLUMNS) * pairs * COLUMNS + q % COLUMNS;
    for (int i = 0; i < pairs; i += 8) {
      V8 r[8];
      for (int j = 0; j < 8; j++) r[j] = load(reinterpret_cast<float*>(rows + static_cast<size_t>(j) * ld + i));
      transpose8(r);
      for (int j = 0; j < std::min(8, pairs - i); j++, panel += COLUMNS) store(reinterpret_cast<float*>(panel), r[j]);
    }
  }
}

size_t panel_pairs(int depth, int width) { return static_cast<size_t>(round_up(width, COLUMNS)) * ((depth + 1) / 2); }

// ---- blocks of pixels ------------------------------------------------------------------------------------------------

size_t num_pixels(const Shape& s) { return static_cast<size_t>(s.n) * s.oh * s.ow; }
bool is_plain(const Shape& s) { return s.kh * s.kw == 1 && s.stride == 1; }

// Pixels whose rows of pairs and outputs stay in the L2 cache.
int block_pixels(size_t pixels, int depth, int width) {
  const size_t fits = std::clamp<size_t>((192 << 10) / (std::min(depth, DEPTH) / 2 + width), 48, 384);
  const size_t blocks = (pixels + fits - 1) / fits;
  return round_up(static_cast<int>((pixels + blocks - 1) / blocks), ROWS);
}

Pair* take(size_t pairs) { return reinterpret_cast<Pair*>(scratch.take(pairs)); }

// Fetches the pixels [first, first + count) of a matrix [pixels][floats], as far as there are some, within `turns`.
Prefetch ahead(const float* matrix, size_t pixels, size_t floats, size_t first, size_t count, size_t turns) {
  const size_t begin = std::min(first, pixels), end = std::min(first + count, pixels);
  return Prefetch(Prefetch::READ, matrix + begin * floats, (end - begin) * floats, turns);
}

// Tiles of a product.
size_t num_tiles(size_t rows, int most_rows, size_t width) {
  return (rows + most_rows - 1) / most_rows * ((width + COLUMNS - 1) / COLUMNS);
}

// out[count][width] = rows[count][depth] panels, where rows(from, to, v) returns columns [from, to) of the rows, which
// it may copy to v, and their distance. What the next block reads is fetched meanwhile.
template <typename F>
void multiply_block(int count, int depth, int width, const Pair* panels, Pair* memory, F rows, float* out,
                    Prefetch next) {
  float* v = reinterpret_cast<float*>(memory) + static_cast<size_t>(count) * DEPTH / 2;
  const float* end = out + static_cast<size_t>(count) * width;
  for (int from = 0; from < depth; from += DEPTH) {
    const int some = std::min(DEPTH, depth - from);
    const auto [at, ld] = rows(from, from + some, v);
    for (int i = 0; i < count; i++) pair_row(at + i * ld, some, memory + static_cast<size_t>(i) * some / 2);
    for (int q = 0; q < width; q += COLUMNS)
      for (int first = 0; first < count; first += ROWS) {
        const float* soon = out + static_cast<size_t>(first + ROWS) * width + q;  // the next tile
        for (int r = 0; r < ROWS; r++, soon += width)
          for (int e = 0; e < COLUMNS && soon < end; e += 16) __builtin_prefetch(soon + e, 1, 3);
        next.turn();
        const Pairs tile{memory + static_cast<size_t>(first) * some / 2, static_cast<size_t>(some) / 2, 1};
        const Pair* panel = panels + (static_cast<size_t>(q) * depth + static_cast<size_t>(from) * COLUMNS) / 2;
        multiply(std::min(ROWS, count - first), tile, panel, some / 2, std::min(COLUMNS, width - q), from > 0,
                 out + static_cast<size_t>(first) * width + q, width);
      }
  }
}

struct Rows {
  const float* at;
  size_t ld;
};

}  // namespace

void forward(const Shape& s, const float* x, const float* filter, float* y, const Done& done) {
  const int depth = s.kh * s.kw * s.c, block = block_pixels(num_pixels(s), depth, s.k);
  Pair* panels = take(panel_pairs(depth, s.k) + static_cast<size_t>(block) * DEPTH * 2);
  Pair* memory = panels + panel_pairs(depth, s.k);
  pack(filter, depth, s.k, panels);
  for (size_t first = 0; first < num_pixels(s); first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, num_pixels(s) - first));
    const auto rows = [&](int from, int to, float* v) -> Rows {
      if (is_plain(s)) return {x + first * s.c + from, static_cast<size_t>(s.c)};
      im2col::gather(s, x, first, count, from, to, to - from, v);
      return {v, static_cast<size_t>(to - from)};
    };
    const size_t turns = num_tiles(count, ROWS, s.k) * ((depth + DEPTH - 1) / DEPTH);
    const bool reads_all = s.kh >= s.stride;  // else most of the input is left out
    const size_t inputs = reads_all ? static_cast<size_t>(s.h) * s.w * s.c / (static_cast<size_t>(s.oh) * s.ow) : 0;
    multiply_block(count, depth, s.k, panels, memory, rows, y + first * s.k,
                   ahead(x, num_pixels(s), inputs, first + block, block, turns));
    if (done) done(first, count);
  }
}

void input_gradient(const Shape& s, const float* dy, const float* filter, float* dx, const Done& done) {
  const int width = s.kh * s.kw * s.c, block = std::min(block_pixels(num_pixels(s), s.k, width), 96 * 64);
  const size_t inputs = static_cast<size_t>(s.n) * s.h * s.w, results = is_plain(s) ? 0 : size_t{1} * block * width;
  const size_t eight_rows = 8 * static_cast<size_t>(round_up(s.k / 2, 8));
  Pair* panels = take(panel_pairs(s.k, width) + static_cast<size_t>(block) * DEPTH * 2 + results + eight_rows);
  Pair* memory = panels + panel_pairs(s.k, width);
  float* m = reinterpret_cast<float*>(memory + static_cast<size_t>(block) * DEPTH * 2);
  pack_turned(filter, s.k, width, reinterpret_cast<Pair*>(m + results), panels);
  if (!is_plain(s)) std::fill(dx, dx + inputs * s.c, 0.f);
  for (size_t first = 0; first < num_pixels(s); first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, num_pixels(s) - first));
    const auto rows = [&](int from, int, float*) -> Rows { return {dy + first * s.k + from, static_cast<size_t>(s.k)}; };
    const size_t turns = num_tiles(count, ROWS, width) * ((s.k + DEPTH - 1) / DEPTH);
    multiply_block(count, s.k, width, panels, memory, rows, is_plain(s) ? dx + first * s.c : m,
                   ahead(dy, num_pixels(s), s.k, first + block, block, turns));
    if (!is_plain(s)) im2col::scatter(s, m, first, count, 0, s.kh, dx);
    if (is_plain(s) && done) done(first, count);
  }
  if (!is_plain(s) && done) done(0, inputs);
}

// Blocks have an even number of pixels, so that a pair is the same pixels in any block.
void filter_gradient(const Shape& s, const float* x, const float* dy, float* dfilter) {
  const int rows = s.kh * s.kw * s.c;
  const size_t pixels = num_pixels(s), blocks = (pixels + 399) / 400;
  const int block = round_up(static_cast<int>((pixels + blocks - 1) / blocks), 2), half = block / 2;
  const size_t part_pairs = static_cast<size_t>(half) * DEPTH;
  Pair* panels = take(panel_pairs(block, s.k) + part_pairs * 3);
  Pair* parts = panels + panel_pairs(block, s.k);
  float* v = reinterpret_cast<float*>(parts + part_pairs);
  for (size_t first = 0; first < pixels; first += block) {
    const int count = static_cast<int>(std::min<size_t>(block, pixels - first)), depth = (count + 1) / 2;
    const size_t turns = num_tiles(rows, SUMMED_ROWS, s.k);
    const size_t inputs = static_cast<size_t>(s.h) * s.w * s.c / (static_cast<size_t>(s.oh) * s.ow);
    Prefetch images = ahead(x, pixels, s.kh >= s.stride ? inputs : 0, first + block, block, turns);
    Prefetch gradients = ahead(dy, pixels, s.k, first + block, block, turns);
    pack(dy + first * s.k, count, s.k, panels);
    for (int from = 0; from < rows; from += DEPTH) {
      const int some = std::min(DEPTH, rows - from);
      if (!is_plain(s)) im2col::gather(s, x, first, count, from, from + some, some, v);
      const float* row = is_plain(s) ? x + first * s.c + from : v;
      const size_t ld = is_plain(s) ? s.c : some;
      for (int i = 0; i < depth; i++, row += 2 * ld)
        pair_rows(row, 2 * i + 1 < count ? row + ld : nullptr, some, parts + static_cast<size_t>(i) * SUMMED_ROWS,
                  static_cast<size_t>(depth) * SUMMED_ROWS);
      for (int q = 0; q < s.k; q += COLUMNS)
        for (int r = 0; r < some; r += SUMMED_ROWS) {
          float* sums = dfilter + static_cast<size_t>(from + r) * s.k + q;
          const float* soon = sums + static_cast<size_t>(SUMMED_ROWS) * s.k;
          for (int i = 0; i < SUMMED_ROWS && r + SUMMED_ROWS < some; i++, soon += s.k)
            for (int e = 0; e < COLUMNS; e += 16) __builtin_prefetch(soon + e, 1, 3);
          images.turn();
          gradients.turn();
          multiply(SUMMED_ROWS, {parts + static_cast<size_t>(r) * depth, 1, SUMMED_ROWS},
                   panels + static_cast<size_t>(q) * depth, depth, std::min(COLUMNS, s.k - q), first > 0,
                   sums, s.k);
        }
    }
  }
}

}  // namespace paceline::half
