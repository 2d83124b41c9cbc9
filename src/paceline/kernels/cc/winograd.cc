#include "winograd.h"

#include <algorithm>
#include <cstring>

#include "bfloat16.h"
#include "prefetch.h"
#include "winograd_filters.h"
#include "winograd_transforms.h"

namespace paceline::winograd {
namespace {

// ---- tiles, strips and blocks ------------------------------------------------------------------------------------

// A tile is 4x4 output pixels. A strip is one row of tiles of one image. A block is some whole strips, whose
// transforms V[point][tile][c] and M[point][tile][k] stay in the L2 cache together: 96 tiles of up to 16 channels,
// 24 of up to 64, else 64 (12 to 192 were tried; with 48 of up to 64 channels, the cache is so full that calls took up
// to 1.4 times as long in some processes). Finished pixels are reported in batches of one or two blocks.
struct Tiling {
  int rows, columns;  // of tiles in an image
  int strips;         // of all images
  int block_strips, block_tiles, batch_strips;

  Tiling(const Shape& s, int channels)
      : rows((s.h + 3) / 4), columns((s.w + 3) / 4), strips(s.n * rows) {
    const int target = channels <= 16 ? 96 : channels <= 64 ? 48 : 64, blocks = target == 48 ? 2 : 1;
    batch_strips = std::min(strips, std::max(1, target / columns));
    block_strips = (batch_strips + blocks - 1) / blocks;
    block_tiles = block_strips * columns;
  }

  // Where the block ends that begins with this strip, and its batch.
  int block_end(int strip) const { return std::min(strip + block_strips, batch_end(strip)); }
  int batch_begin(int strip) const { return strip / batch_strips * batch_strips; }
  int batch_end(int strip) const { return std::min(batch_begin(strip) + batch_strips, strips); }

  // Pixels before a strip.
  size_t pixel(const Shape& s, int strip) const {
    return (static_cast<size_t>(strip / rows) * s.h + 4 * (strip % rows)) * s.w;
  }
  // The pixels of strips [first, last).
  size_t pixels(const Shape& s, int first, int last) const {
    return pixel(s, last) - pixel(s, first);
  }
};

// The distance between two points in memory: an odd number of cache lines and never near a multiple of a page, else
// 36 streams would meet in one set of the L1 cache.
inline size_t spread(size_t floats) {
  const size_t lines = (floats + 15) / 16 | 1;
  return lines * 16 + (lines % 64 < 4 ? 64 : 0);
}

// Where the parts of a call are in the scratch memory.
struct Buffers {
  size_t point_u, point_v, point_m;  // distances between points
  float *u, *v, *m, *columns, *zeros;

  Buffers(Scratch& scratch, const Shape& s, const Tiling& t, size_t u_floats, int v_channels,
          int m_channels, int channels) {
    point_u = spread(u_floats);
    point_v = spread(static_cast<size_t>(t.block_tiles) * v_channels);
    point_m = spread(static_cast<size_t>(t.block_tiles) * m_channels);
    const size_t columns_floats = static_cast<size_t>(4 * t.columns + 2) * 6 * 16;
    const size_t zeros_floats = static_cast<size_t>(s.w) * channels;
    u = scratch.take(POINTS * (point_u + point_v + point_m) + columns_floats + zeros_floats);
    v = u + POINTS * point_u;
    m = v + POINTS * point_v;
    columns = m + POINTS * point_m;
    zeros = columns + columns_floats;
    std::memset(zeros, 0, zeros_floats * sizeof(float));
  }

  template <typename T>
  const T* nothing() const {
    return reinterpret_cast<const T*>(zeros);
  }
};

thread_local Scratch scratch;

// ---- transforms of a strip, with the vectors of AVX2 and those of AVX-512 -----------------------------------------

namespace narrow {
using V = V8;
constexpr int LANES = 8;
template <typename T>
V get(const T* p) {
  return load(p);
}
template <typename T>
void put(T* p, V v) {
  store(p, v);
}
#include "winograd_strips.h"
}  // namespace narrow

#ifdef __x86_64__
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
namespace broad {
typedef float V __attribute__((vector_size(64), may_alias));
typedef float Unaligned __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int LANES = 16;
inline V get(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline void put(float* p, V v) { *reinterpret_cast<Unaligned*>(p) = v; }
inline V get(const Half* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
}
inline void put(Half* p, V v) {
  paceline::store(p, _mm512_castps512_ps256(v));
  paceline::store(p + 8, (V8)_mm512_extractf64x4_pd((__m512d)v, 1));
}
inline V add(V a, V b) { return a + b; }
inline V sub(V a, V b) { return a - b; }
inline V mul(double a, V b) { return static_cast<float>(a) * b; }
inline V fma(double a, V b, V c) { return _mm512_fmadd_ps(_mm512_set1_ps(static_cast<float>(a)), b, c); }
inline V fnma(double a, V b, V c) { return fma(-a, b, c); }
#include "winograd_strips.h"
}  // namespace broad
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
namespace broad = narrow;
#endif

// Whether strips of this many channels are transformed with AVX-512.
bool is_broad(int channels) { return wide::used && channels % 16 == 0; }

template <typename T>
void input_block(const Shape& s, const Tiling& t, int c, const T* x, int first, int strips, const Buffers& b) {
  const size_t image = static_cast<size_t>(s.h) * s.w * c;
  const auto transform = is_broad(c) ? broad::input_strip<1, T>
                         : c % 16    ? narrow::input_strip<1, T>
                                     : narrow::input_strip<2, T>;
  for (int i = 0; i < strips; i++) {
    const int strip = first + i;
    transform(s, c, t.columns, x + static_cast<size_t>(strip / t.rows) * image, strip % t.rows, b,
              b.v + static_cast<size_t>(i) * t.columns * c);
  }
}

// ---- the convolution and its gradients ---------------------------------------------------------------------------

template <typename T>
void convolve(const Shape& s, int in, int out, const T* x, const float* filter, bool turned, T* y, const Done& done) {
  const Tiling t(s, std::max(in, out));
  // A large filter that only one block uses is transformed and used in groups of output channels that stay in cache.
  const bool in_groups =
      t.block_strips >= t.strips && static_cast<size_t>(in) * out > 128 * 128;
  const int group = in_groups ? 32 : out;
  const Buffers b(scratch, s, t, static_cast<size_t>(in) * group, in, group, in);
  const auto transform = turned ? transform_turned_filter : transform_filter;
  if (!in_groups) transform(filter, in, out, 0, out, b.u, b.point_u);
  const size_t image = static_cast<size_t>(s.h) * s.w * out;
  for (int first = 0, last; first < t.strips; first = last) {
    last = t.block_end(first);
    const int tiles = (last - first) * t.columns, next = std::min(last + t.block_strips, t.strips);
    input_block(s, t, in, x, first, last - first, b);
    const size_t turns = static_cast<size_t>(POINTS) * ((out + 15) / 16) * ((tiles + 5) / 6);
    Prefetch reads(Prefetch::READ, x + t.pixel(s, last) * in, t.pixels(s, last, next) * in, turns);
    Prefetch writes(Prefetch::WRITE, y + t.pixel(s, first) * out, t.pixels(s, first, last) * out,
                    turns);
    const auto prefetch = [&] {
      reads.turn();
      writes.turn();
    };
    for (int k0 = 0; k0 < out; k0 += group) {
      const int width = std::min(group, out - k0);
      if (in_groups) transform(filter, in, out, k0, width, b.u, b.point_u);
      for (int p = 0; p < POINTS; p++)
        multiply_panels(tiles, b.v + p * b.point_v, in, b.u + p * b.point_u, in, width,
                        b.m + p * b.point_m, width, prefetch);
      const auto output_strip = is_broad(width) ? broad::output_strip<T> : narrow::output_strip<T>;
      for (int strip = first; strip < last; strip++)
        output_strip(s, out, k0, width, t.columns, y + static_cast<size_t>(strip / t.rows) * image,
                     strip % t.rows, b.m + static_cast<size_t>(strip - first) * t.columns * width,
                     b.point_m);
    }
    if (done && last == t.batch_end(first))
      done(t.pixel(s, t.batch_begin(first)), t.pixels(s, t.batch_begin(first), last));
  }
}

}  // namespace

template <typename T>
void forward(const Shape& s, const T* x, const float* filter, T* y, const Done& done) {
  convolve(s, s.c, s.k, x, filter, false, y, done);
}

template <typename T>
void input_gradient(const Shape& s, const T* dy, const float* filter, T* dx, const Done& done) {
  convolve(s, s.k, s.c, dy, filter, true, dx, done);
}

// dU[point][c][k] += V^T M over the tiles of each block, in the order of the blocks; then G^T dU G.
template <typename T>
void filter_gradient(const Shape& s, const T* x, const T* dy, float* dfilter) {
  const int c = s.c, k = s.k;
  const Tiling t(s, std::max(c, k));
  const bool in_groups = t.block_strips >= t.strips;  // one block: dU in groups of rows that stay in the cache
  const int group = in_groups ? std::min(c, 24) : c;
  const Buffers b(scratch, s, t, static_cast<size_t>(group) * k, c, k, std::max(c, k));
  const size_t image = static_cast<size_t>(s.h) * s.w * k;
  for (int first = 0; first < t.strips; first += t.block_strips) {
    const int last = std::min(first + t.block_strips, t.strips), tiles = (last - first) * t.columns;
    const int next = std::min(last + t.block_strips, t.strips);
    input_block(s, t, c, x, first, last - first, b);
    const auto gradient_strip = is_broad(k) ? broad::gradient_strip<T> : narrow::gradient_strip<T>;
    for (int strip = first; strip < last; strip++)
      gradient_strip(s, k, t.columns, dy + static_cast<size_t>(strip / t.rows) * image,
                     strip % t.rows, b, b.m + static_cast<size_t>(strip - first) * t.columns * k);
    const size_t turns = static_cast<size_t>(POINTS) * ((c + 5) / 6) * ((k + 15) / 16);
    const size_t pixel = t.pixel(s, last), pixels = t.pixels(s, last, next);
    Prefetch images(Prefetch::READ, x + pixel * c, pixels * c, turns);
    Prefetch gradients(Prefetch::READ, dy + pixel * k, pixels * k, turns);
    const auto prefetch = [&] {
      images.turn();
      gradients.turn();
    };
    for (int c0 = 0; c0 < c; c0 += group) {
      const int rows = std::min(group, c - c0);
      for (int p = 0; p < POINTS; p++)
        correlate_all(rows, k, b.v + p * b.point_v + c0, c, b.m + p * b.point_m, k, tiles,
                      b.u + p * b.point_u, k, first > 0, prefetch);
      if (in_groups) write_filter_gradient(b.u, b.point_u, rows, c0, c, k, dfilter);
    }
  }
  if (!in_groups) write_filter_gradient(b.u, b.point_u, c, 0, c, k, dfilter);
}

#define FOR_IMAGES_OF(T)                                                                  \
  template void forward(const Shape&, const T*, const float*, T*, const Done&);        \
  template void input_gradient(const Shape&, const T*, const float*, T*, const Done&); \
  template void filter_gradient(const Shape&, const T*, const T*, float*);
FOR_IMAGES_OF(float)
FOR_IMAGES_OF(Half)

}  // namespace paceline::winograd
