// Vectors of eight floats, scratch memory of a thread, and products of small matrices in registers.
//
// Eight lanes are part of the arithmetic: every sum runs in an order that the shapes alone decide, and a
// multiplication and an addition are rounded once (`fma`) or twice (`*`, `+`) as written. So the same arguments give
// the same bits on every thread and on every CPU. The compiler's vector extensions compute them on any CPU; only what
// they lack is written for each kind. Compile with -ffp-contract=off, which keeps `a * b + c` two roundings.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "wide_products.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace paceline {

typedef float V8 __attribute__((vector_size(32), may_alias));
typedef int32_t I8 __attribute__((vector_size(32), may_alias));
typedef float Unaligned8 __attribute__((vector_size(32), aligned(4), may_alias));

inline V8 load(const float* p) { return *reinterpret_cast<const Unaligned8*>(p); }
inline void store(float* p, V8 v) { *reinterpret_cast<Unaligned8*>(p) = v; }
inline V8 zero() { return V8{}; }
inline V8 set(float f) { return V8{f, f, f, f, f, f, f, f}; }

// a b + c, rounded once.
inline V8 fma(V8 a, V8 b, V8 c) {
#if defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  union Halves { V8 v; float32x4_t h[2]; } x{a}, y{b}, z{c};
  z.h[0] = vfmaq_f32(z.h[0], x.h[0], y.h[0]);
  z.h[1] = vfmaq_f32(z.h[1], x.h[1], y.h[1]);
  return z.v;
#else
  for (int i = 0; i < 8; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

// As x86 computes them: the second one if one is not a number, or if both are equal.
inline V8 max(V8 a, V8 b) { return a > b ? a : b; }
inline V8 min(V8 a, V8 b) { return a < b ? a : b; }

// The value where the mask is all ones, else 0.
inline V8 where(I8 mask, V8 value) { return (V8)(mask & (I8)value); }

// Eight rows of eight floats to eight columns.
inline void transpose8(V8 (&r)[8]) {
  V8 t[8], v[8];
  for (int i = 0; i < 4; i++) {
    t[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    t[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 2; k++) {
      v[4 * i + 2 * k] = __builtin_shufflevector(t[4 * i + k], t[4 * i + 2 + k], 0, 1, 8, 9, 4, 5, 12, 13);
      v[4 * i + 2 * k + 1] = __builtin_shufflevector(t[4 * i + k], t[4 * i + 2 + k], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; i++) {
    r[i] = __builtin_shufflevector(v[i], v[4 + i], 0, 1, 2, 3, 8, 9, 10, 11);
    r[4 + i] = __builtin_shufflevector(v[i], v[4 + i], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Memory of one thread, used by one call at a time. It is kept between calls, but never more than 32 MiB.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }

  float* take(size_t floats) {
    constexpr size_t kept = size_t{8} << 20;
    if (floats > size_ || (size_ > kept && floats <= kept)) {
      std::free(data_);
      data_ = nullptr;
      size_ = 0;
      // Huge pages where the system has them: the Winograd transforms write 36 streams at once.
      constexpr size_t page = size_t{2} << 20;
      const size_t bytes = (floats * sizeof(float) + page - 1) / page * page;
      data_ = static_cast<float*>(std::aligned_alloc(page, bytes));
      if (!data_) throw std::bad_alloc();
      madvise(data_, bytes, MADV_HUGEPAGE);
      size_ = bytes / sizeof(float);
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  size_t size_ = 0;
};

// ROWS rows of a product with a panel of 8 VECTORS columns:
//   m[ROWS][8 VECTORS] (+)= v[ROWS][depth] panel[depth][8 VECTORS];  depth is a multiple of 8.
template <int ROWS, int VECTORS, bool ADD>
inline __attribute__((always_inline)) void multiply(const float* v, size_t ldv, const float* panel,
                                                    int depth, float* m, size_t ldm) {
  V8 sums[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int q = 0; q < VECTORS; q++) sums[r][q] = ADD ? load(m + r * ldm + q * 8) : zero();
  for (int c = 0; c < depth; c += 8) {
#pragma GCC unroll 8
    for (int e = 0; e < 8; e++) {
      V8 b[VECTORS];
#pragma GCC unroll 2
      for (int q = 0; q < VECTORS; q++) b[q] = load(panel + (e * VECTORS + q) * 8);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const V8 a = set(*(v + r * ldv + e));
#pragma GCC unroll 2
        for (int q = 0; q < VECTORS; q++) sums[r][q] = fma(a, b[q], sums[r][q]);
      }
    }
    panel += 8 * VECTORS * 8;
    v += 8;
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int q = 0; q < VECTORS; q++) store(m + r * ldm + q * 8, sums[r][q]);
}

template <int VECTORS, bool ADD>
__attribute__((noinline)) void multiply_rows(int rows, const float* v, size_t ldv,
                                             const float* panel, int depth, float* m, size_t ldm) {
  switch (rows) {
    case 1: return multiply<1, VECTORS, ADD>(v, ldv, panel, depth, m, ldm);
    case 2: return multiply<2, VECTORS, ADD>(v, ldv, panel, depth, m, ldm);
    case 3: return multiply<3, VECTORS, ADD>(v, ldv, panel, depth, m, ldm);
    case 4: return multiply<4, VECTORS, ADD>(v, ldv, panel, depth, m, ldm);
    case 5: return multiply<5, VECTORS, ADD>(v, ldv, panel, depth, m, ldm);
    default: return multiply<6, VECTORS, ADD>(v, ldv, panel, depth, m, ldm);
  }
}

// All rows with one panel, six at a time: 6 x 16 sums fill the sixteen registers of AVX2.
// `meanwhile` is called before each product and may fetch memory.
template <int VECTORS, bool ADD = false, typename F>
inline void multiply_all(int rows, const float* v, size_t ldv, const float* panel, int depth,
                         float* m, size_t ldm, F meanwhile) {
  while (rows == 6 || rows >= 12) {
    meanwhile();
    multiply<6, VECTORS, ADD>(v, ldv, panel, depth, m, ldm);
    v += 6 * ldv;
    m += 6 * ldm;
    rows -= 6;
  }
  while (rows > 0) {
    const int some = rows > 6 ? (rows + 1) / 2 : rows;
    meanwhile();
    multiply_rows<VECTORS, ADD>(some, v, ldv, panel, depth, m, ldm);
    v += some * ldv;
    m += some * ldm;
    rows -= some;
  }
}

// Columns of the next product, where `left` are left.
inline int next_columns(int left) {
  return left >= wide::COLUMNS && wide::used ? wide::COLUMNS : left >= 16 ? 16 : 8;
}

// Whether a product with this many columns uses AVX-512, and the rows of the largest.
inline bool is_wide(int columns) { return wide::used && columns >= 16; }
inline int most_rows(int columns) { return !is_wide(columns) ? 6 : columns == 16 ? 2 * wide::ROWS : wide::ROWS; }

// A wide product takes four turns of what is fetched meanwhile, one of 6 x 16 takes one.
constexpr int TURNS_OF_WIDE = 4;
inline int turns_of(int columns) { return is_wide(columns) ? TURNS_OF_WIDE : 1; }

// out[rows][columns] (+)= v[rows][depth] panels, for as many columns as `next_columns` says.
template <bool ADD, typename F>
inline void multiply_columns(int columns, int rows, const float* v, size_t ldv, const float* panels, int depth,
                             float* out, size_t ldo, F meanwhile) {
  if (columns == 8) return multiply_all<1, ADD>(rows, v, ldv, panels, depth, out, ldo, meanwhile);
  if (!is_wide(columns)) return multiply_all<2, ADD>(rows, v, ldv, panels, depth, out, ldo, meanwhile);
  const int most = most_rows(columns);
  for (int some; rows > 0; rows -= some, v += some * ldv, out += some * ldo) {
    some = rows <= most ? rows : rows >= 2 * most ? most : (rows + 1) / 2;
    for (int i = 0; i < TURNS_OF_WIDE; i++) meanwhile();
    wide::multiply(ADD, some, columns, v, ldv, panels, static_cast<size_t>(depth) * 16, depth, out, ldo);
  }
}

// out[rows][width] with panels of 16 columns (the last of 8 if need be): out = v[rows][depth] panels.
template <typename F>
inline void multiply_panels(int rows, const float* v, size_t ldv, const float* panels, int depth,
                            int width, float* out, size_t ldo, F meanwhile) {
  for (int q = 0, columns; q < width; q += columns) {
    columns = next_columns(width - q);
    multiply_columns<false>(columns, rows, v, ldv, panels + static_cast<size_t>(q) * depth, depth, out + q, ldo,
                            meanwhile);
  }
}

// ROWS rows of a sum of outer products:
//   u[ROWS][8 VECTORS] (+)= sum over t of v[t][ROWS] m[t][8 VECTORS]
template <int ROWS, int VECTORS>
void correlate(const float* v, size_t ldv, const float* m, size_t ldm, int count, float* u,
               size_t ldu, bool add) {
  V8 sums[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int q = 0; q < VECTORS; q++) sums[r][q] = add ? load(u + r * ldu + q * 8) : zero();
#pragma GCC unroll 4
  for (int t = 0; t < count; t++) {
    V8 b[VECTORS];
#pragma GCC unroll 2
    for (int q = 0; q < VECTORS; q++) b[q] = load(m + q * 8);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const V8 a = set(*(v + r));
#pragma GCC unroll 2
      for (int q = 0; q < VECTORS; q++) sums[r][q] = fma(a, b[q], sums[r][q]);
    }
    v += ldv;
    m += ldm;
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int q = 0; q < VECTORS; q++) store(u + r * ldu + q * 8, sums[r][q]);
}

template <int VECTORS>
void correlate_rows(int rows, const float* v, size_t ldv, const float* m, size_t ldm, int count,
                    float* u, size_t ldu, bool add) {
  switch (rows) {
    case 1: return correlate<1, VECTORS>(v, ldv, m, ldm, count, u, ldu, add);
    case 2: return correlate<2, VECTORS>(v, ldv, m, ldm, count, u, ldu, add);
    case 3: return correlate<3, VECTORS>(v, ldv, m, ldm, count, u, ldu, add);
    case 4: return correlate<4, VECTORS>(v, ldv, m, ldm, count, u, ldu, add);
    case 5: return correlate<5, VECTORS>(v, ldv, m, ldm, count, u, ldu, add);
    default: return correlate<6, VECTORS>(v, ldv, m, ldm, count, u, ldu, add);
  }
}

// u[rows][columns] (+)= sum over t of v[t][rows] m[t][columns], where m is panels of 16 columns, `panel` floats apart.
inline void correlate_columns(int columns, int rows, const float* v, size_t ldv, const float* m, size_t ldm,
                              size_t panel, int count, float* u, size_t ldu, bool add) {
  if (columns == 8) return correlate_rows<1>(rows, v, ldv, m, ldm, count, u, ldu, add);
  if (!is_wide(columns)) return correlate_rows<2>(rows, v, ldv, m, ldm, count, u, ldu, add);
  wide::correlate(add, rows, columns, v, ldv, m, ldm, panel, count, u, ldu);
}

// u[rows][width] (+)= sum over t of v[t][rows] m[t][width], in pieces that fit the registers.
template <typename F>
inline void correlate_all(int rows, int width, const float* v, size_t ldv, const float* m,
                          size_t ldm, int count, float* u, size_t ldu, bool add, F meanwhile) {
  for (int q = 0, columns; q < width; q += columns) {
    columns = next_columns(width - q);
    const int most = most_rows(columns), parts = (rows + most - 1) / most;
    const int least = rows / parts, longer = rows % parts;
    for (int p = 0, first = 0, some; p < parts; p++, first += some) {
      some = least + (p < longer);
      for (int i = 0; i < turns_of(columns); i++) meanwhile();
      correlate_columns(columns, some, v + first, ldv, m + q, ldm, 16, count,
                        u + static_cast<size_t>(first) * ldu + q, ldu, add);
    }
  }
}

}  // namespace paceline
