// What a convolution calls when it has written some pixels, while they are still in the cache: it adds to the
// statistics of a norm, or applies one, without another walk through memory.
#pragma once

#include <cstddef>
#include <functional>

namespace paceline {

// (first pixel, number of pixels) of the output. Each pixel comes once, in the order of memory.
using Done = std::function<void(size_t, size_t)>;

}  // namespace paceline
