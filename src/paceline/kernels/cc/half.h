// The type of numbers of 16 bits in memory: bfloat16, the upper half of a float32. `bfloat16.h` reads and writes them.
#pragma once

#include <cstdint>

namespace paceline {

struct Half {
  uint16_t bits;
};

namespace half {

// Whether AVX512_BF16 is used. Only a CPU that has it may set it, before the first product (kernels/library.py).
extern bool used;

}  // namespace half
}  // namespace paceline
