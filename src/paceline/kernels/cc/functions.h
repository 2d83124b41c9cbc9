// Exponential and logarithm from sums, products and integer operations alone: the same bits on every CPU.
#pragma once

#include "simd.h"

namespace paceline {
namespace {

inline V8 round_to_integer(V8 x) {  // to even; |x| < 2^22
  const V8 big = set(12582912.0f);  // 1.5 2^23
  return (x + big) - big;
}

// e^x to about 2 units in the last place; x is kept within [-87, 87]. Cody and Waite's reduction, and the
// polynomial of Cephes (expf).
inline V8 exponential(V8 x) {
  x = min(max(x, set(-87.0f)), set(87.0f));
  const V8 n = round_to_integer(x * 1.44269504088896341f);
  V8 r = fma(-n, set(0.693359375f), x);
  r = fma(-n, set(-2.12194440e-4f), r);
  V8 p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
  const I8 power = __builtin_convertvector(n, I8) + 127;
  return p * (V8)(power << 23);
}

}  // namespace
}  // namespace paceline
