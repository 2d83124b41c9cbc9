#include "wide_products.h"

#include <type_traits>

#include "half_products.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace paceline::wide {

bool used = false;

#ifdef __x86_64__
namespace {

// The rest of the library is compiled for AVX2.
#define AVX512 __attribute__((target("avx512f")))

template <int N, int PANELS, bool ADD>
AVX512 void multiply_rows(const float* v, size_t ldv, const float* panel, size_t half, int depth, float* m,
                          size_t ldm) {
  __m512 sums[N][PANELS];
#pragma GCC unroll 24
  for (int r = 0; r < N; r++)
#pragma GCC unroll 2
    for (int q = 0; q < PANELS; q++) sums[r][q] = ADD ? _mm512_loadu_ps(m + r * ldm + 16 * q) : _mm512_setzero_ps();
#pragma GCC unroll 2
  for (int c = 0; c < depth; c++, panel += 16) {
    __m512 b[PANELS];
#pragma GCC unroll 2
    for (int q = 0; q < PANELS; q++) b[q] = _mm512_loadu_ps(panel + q * half);
#pragma GCC unroll 24
    for (int r = 0; r < N; r++) {
      const __m512 a = _mm512_set1_ps(v[r * ldv + c]);
#pragma GCC unroll 2
      for (int q = 0; q < PANELS; q++) sums[r][q] = _mm512_fmadd_ps(a, b[q], sums[r][q]);
    }
  }
#pragma GCC unroll 24
  for (int r = 0; r < N; r++)
#pragma GCC unroll 2
    for (int q = 0; q < PANELS; q++) _mm512_storeu_ps(m + r * ldm + 16 * q, sums[r][q]);
}

template <int N, int PANELS, bool ADD>
AVX512 void correlate_rows(const float* v, size_t ldv, const float* m, size_t ldm, size_t half, int count, float* u,
                           size_t ldu) {
  __m512 sums[N][PANELS];
#pragma GCC unroll 24
  for (int r = 0; r < N; r++)
#pragma GCC unroll 2
    for (int q = 0; q < PANELS; q++) sums[r][q] = ADD ? _mm512_loadu_ps(u + r * ldu + 16 * q) : _mm512_setzero_ps();
#pragma GCC unroll 2
  for (int t = 0; t < count; t++, v += ldv, m += ldm) {
    __m512 b[PANELS];
#pragma GCC unroll 2
    for (int q = 0; q < PANELS; q++) b[q] = _mm512_loadu_ps(m + q * half);
#pragma GCC unroll 24
    for (int r = 0; r < N; r++) {
      const __m512 a = _mm512_set1_ps(v[r]);
#pragma GCC unroll 2
      for (int q = 0; q < PANELS; q++) sums[r][q] = _mm512_fmadd_ps(a, b[q], sums[r][q]);
    }
  }
#pragma GCC unroll 24
  for (int r = 0; r < N; r++)
#pragma GCC unroll 2
    for (int q = 0; q < PANELS; q++) _mm512_storeu_ps(u + r * ldu + 16 * q, sums[r][q]);
}

// Calls body with the number of rows, 1 to N, as a compile-time constant.
template <int N, typename F>
void with_rows(int rows, F body) {
  if constexpr (N > 1)
    if (rows < N) return with_rows<N - 1>(rows, body);
  body(std::integral_constant<int, N>());
}

}  // namespace

void multiply(bool add, int rows, int columns, const float* v, size_t ldv, const float* panel, size_t half, int depth,
              float* m, size_t ldm) {
  if (columns == 16)
    return with_rows<2 * ROWS>(rows, [&](auto n) {
      (add ? multiply_rows<n(), 1, true> : multiply_rows<n(), 1, false>)(v, ldv, panel, half, depth, m, ldm);
    });
  with_rows<ROWS>(rows, [&](auto n) {
    (add ? multiply_rows<n(), 2, true> : multiply_rows<n(), 2, false>)(v, ldv, panel, half, depth, m, ldm);
  });
}

void correlate(bool add, int rows, int columns, const float* v, size_t ldv, const float* m, size_t ldm, size_t half,
               int count, float* u, size_t ldu) {
  if (columns == 16)
    return with_rows<2 * ROWS>(rows, [&](auto n) {
      (add ? correlate_rows<n(), 1, true> : correlate_rows<n(), 1, false>)(v, ldv, m, ldm, half, count, u, ldu);
    });
  with_rows<ROWS>(rows, [&](auto n) {
    (add ? correlate_rows<n(), 2, true> : correlate_rows<n(), 2, false>)(v, ldv, m, ldm, half, count, u, ldu);
  });
}
#else
void multiply(bool, int, int, const float*, size_t, const float*, size_t, int, float*, size_t) {}
void correlate(bool, int, int, const float*, size_t, const float*, size_t, size_t, int, float*, size_t) {}
#endif

}  // namespace paceline::wide

// Whether AVX-512 is used, and AVX512_BF16.
extern "C" void paceline_use_avx512(bool wide, bool half) {
  paceline::wide::used = wide;
  paceline::half::used = half;
}
