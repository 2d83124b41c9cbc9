// Vectors of eight floats, scratch memory of a thread, and products of small matrices in registers.
//
// AVX2 and FMA only. Every sum runs in an order that the shapes alone decide, so the same arguments give
// the same bits on every thread and on every CPU that has these instructions.
#pragma once

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace paceline {

using V8 = __m256;

inline V8 load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V8 v) { _mm256_storeu_ps(p, v); }
inline V8 zero() { return _mm256_setzero_ps(); }

// Eight rows of eight floats to eight columns.
inline void transpose8(V8 (&r)[8]) {
  V8 t[8], v[8];
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    v[4 * i + 0] = _mm256_shuffle_ps(t[4 * i + 0], t[4 * i + 2], 0x44);
    v[4 * i + 1] = _mm256_shuffle_ps(t[4 * i + 0], t[4 * i + 2], 0xEE);
    v[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    v[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(v[i], v[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(v[i], v[4 + i], 0x31);
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
        const V8 a = _mm256_broadcast_ss(v + r * ldv + e);
#pragma GCC unroll 2
        for (int q = 0; q < VECTORS; q++) sums[r][q] = _mm256_fmadd_ps(a, b[q], sums[r][q]);
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

// out[rows][width] with panels of 16 columns (the last of 8 if need be): out = v[rows][depth] panels.
template <typename F>
inline void multiply_panels(int rows, const float* v, size_t ldv, const float* panels, int depth,
                            int width, float* out, size_t ldo, F meanwhile) {
  for (int q = 0; q < width; q += 16) {
    const float* panel = panels + static_cast<size_t>(q) * depth;
    if (width - q >= 16)
      multiply_all<2>(rows, v, ldv, panel, depth, out + q, ldo, meanwhile);
    else
      multiply_all<1>(rows, v, ldv, panel, depth, out + q, ldo, meanwhile);
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
      const V8 a = _mm256_broadcast_ss(v + r);
#pragma GCC unroll 2
      for (int q = 0; q < VECTORS; q++) sums[r][q] = _mm256_fmadd_ps(a, b[q], sums[r][q]);
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

// u[rows][width] (+)= sum over t of v[t][rows] m[t][width], in pieces of at most 6 x 16.
template <typename F>
inline void correlate_all(int rows, int width, const float* v, size_t ldv, const float* m,
                          size_t ldm, int count, float* u, size_t ldu, bool add, F meanwhile) {
  const int parts = (rows + 5) / 6, least = rows / parts, longer = rows % parts;
  for (int q = 0; q < width; q += 16)
    for (int p = 0, first = 0; p < parts; p++) {
      const int some = least + (p < longer);
      float* to = u + static_cast<size_t>(first) * ldu + q;
      meanwhile();
      if (width - q >= 16)
        correlate_rows<2>(some, v + first, ldv, m + q, ldm, count, to, ldu, add);
      else
        correlate_rows<1>(some, v + first, ldv, m + q, ldm, count, to, ldu, add);
      first += some;
    }
}

}  // namespace paceline
