#include "wide_products.h"

#include "half_products.h"

#include <type_traits>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace paceline::wide {

bool used = false;

#ifdef __x86_64__
namespace {

// The rest of the library is compiled for AVX2.
#define AVX512 __attribute__((target("avx512f")))

template <int N, bool ADD>
AVX512 void multiply_rows(const float* v, size_t ldv, const float* panel, size_t half, int depth, float* m,
                          size_t ldm) {
  __m512 sums[N][2];
#pragma GCC unroll 12
  for (int r = 0; r < N; r++) {
    sums[r][0] = ADD ? _mm512_loadu_ps(m + r * ldm) : _mm512_setzero_ps();
    sums[r][1] = ADD ? _mm512_loadu_ps(m + r * ldm + 16) : _mm512_setzero_ps();
  }
#pragma GCC unroll 2
  for (int c = 0; c < depth; c++, panel += 16) {
    const __m512 b = _mm512_loadu_ps(panel), d = _mm512_loadu_ps(panel + half);
#pragma GCC unroll 12
    for (int r = 0; r < N; r++) {
      const __m512 a = _mm512_set1_ps(v[r * ldv + c]);
      sums[r][0] = _mm512_fmadd_ps(a, b, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(a, d, sums[r][1]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < N; r++) {
    _mm512_storeu_ps(m + r * ldm, sums[r][0]);
    _mm512_storeu_ps(m + r * ldm + 16, sums[r][1]);
  }
}

template <int N, bool ADD>
AVX512 void correlate_rows(const float* v, size_t ldv, const float* m, size_t ldm, size_t half, int count, float* u,
                           size_t ldu) {
  __m512 sums[N][2];
#pragma GCC unroll 12
  for (int r = 0; r < N; r++) {
    sums[r][0] = ADD ? _mm512_loadu_ps(u + r * ldu) : _mm512_setzero_ps();
    sums[r][1] = ADD ? _mm512_loadu_ps(u + r * ldu + 16) : _mm512_setzero_ps();
  }
#pragma GCC unroll 2
  for (int t = 0; t < count; t++, v += ldv, m += ldm) {
    const __m512 b = _mm512_loadu_ps(m), d = _mm512_loadu_ps(m + half);
#pragma GCC unroll 12
    for (int r = 0; r < N; r++) {
      const __m512 a = _mm512_set1_ps(v[r]);
      sums[r][0] = _mm512_fmadd_ps(a, b, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(a, d, sums[r][1]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < N; r++) {
    _mm512_storeu_ps(u + r * ldu, sums[r][0]);
    _mm512_storeu_ps(u + r * ldu + 16, sums[r][1]);
  }
}

// Calls body with the number of rows, 1 to 12, as a compile-time constant.
template <int N = ROWS, typename F>
void with_rows(int rows, F body) {
  if constexpr (N > 1)
    if (rows < N) return with_rows<N - 1>(rows, body);
  body(std::integral_constant<int, N>());
}

}  // namespace

void multiply(bool add, int rows, const float* v, size_t ldv, const float* panel, size_t half, int depth, float* m,
              size_t ldm) {
  with_rows(rows, [&](auto n) {
    (add ? multiply_rows<n(), true> : multiply_rows<n(), false>)(v, ldv, panel, half, depth, m, ldm);
  });
}

void correlate(bool add, int rows, const float* v, size_t ldv, const float* m, size_t ldm, size_t half, int count,
               float* u, size_t ldu) {
  with_rows(rows, [&](auto n) {
    (add ? correlate_rows<n(), true> : correlate_rows<n(), false>)(v, ldv, m, ldm, half, count, u, ldu);
  });
}
#else
void multiply(bool, int, const float*, size_t, const float*, size_t, int, float*, size_t) {}
void correlate(bool, int, const float*, size_t, const float*, size_t, size_t, int, float*, size_t) {}
#endif

}  // namespace paceline::wide

// Whether AVX-512 is used, and AVX512_BF16.
extern "C" void paceline_use_avx512(bool wide, bool half) {
  paceline::wide::used = wide;
  paceline::half::used = half;
}
