// Reads and writes bfloat16 numbers. Kernels that are templates over the type of their images use `load` and `store` for
// both types, and compute in float32.
#pragma once

#include "half.h"
#include "simd.h"

namespace paceline {

typedef uint32_t U8 __attribute__((vector_size(32), may_alias));
typedef uint16_t Halves8 __attribute__((vector_size(16), aligned(2), may_alias));

inline V8 with_sign_only(I8 mask, V8 x) { return (V8)((U8)x & (~(U8)mask | 0x80000000u)); }
inline V8 absolute(V8 x) { return (V8)((U8)x & 0x7fffffffu); }

// Zero, with its sign, in place of a number below the smallest normal one.
inline V8 flushed(V8 x) { return with_sign_only(absolute(x) < 0x1p-126f, x); }

// Flushed, and rounded to nearest, ties to even: the upper halves are bfloat16. What is not a number stays so.
inline U8 rounded(V8 x) {
  const U8 bits = (U8)flushed(x), is_number = (U8)(x == x);
  return (is_number & (bits + 0x7fff + (bits >> 16 & 1))) | (~is_number & (bits | 0x400000));
}

inline V8 load(const Half* p) {
  return (V8)(__builtin_convertvector(*reinterpret_cast<const Halves8*>(p), U8) << 16);
}

inline void store(Half* p, V8 x) {
#ifdef __x86_64__
  if (half::used) {  // the same; written so because what calls it is compiled for any CPU
    __m128i y;
    asm("vcvtneps2bf16 %1, %0" : "=x"(y) : "x"(x));
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), y);
  }
#endif
  *reinterpret_cast<Halves8*>(p) = __builtin_convertvector(rounded(x) >> 16, Halves8);
}

}  // namespace paceline
