// Products of 12 rows and 32 columns, or of 24 and 16, in the 32 registers of AVX-512. Lanes are independent sums, and the order of each
// sum is that of `multiply` and `correlate` in simd.h, so the bits are the same.
#pragma once

#include <cstddef>

namespace paceline::wide {

constexpr int ROWS = 12, COLUMNS = 32;

// Whether they are used. Only a CPU with AVX-512 may set it, before the first product (kernels/library.py).
extern bool used;

// m[rows][32] (+)= v[rows][depth] panel[depth][2][16], where panel[i][1] is `half` floats after panel[i][0]. With 16
// columns, for up to twice as many rows: m[rows][16] (+)= v[rows][depth] panel[depth][16]
void multiply(bool add, int rows, int columns, const float* v, size_t ldv, const float* panel, size_t half, int depth,
              float* m, size_t ldm);

// u[rows][32] (+)= sum over t of v[t][rows] m[t][2][16], where m[t][1] is `half` floats after m[t][0]. With 16 columns,
// for up to twice as many rows: u[rows][16] (+)= sum over t of v[t][rows] m[t][16]
void correlate(bool add, int rows, int columns, const float* v, size_t ldv, const float* m, size_t ldm, size_t half,
               int count, float* u, size_t ldu);

}  // namespace paceline::wide
