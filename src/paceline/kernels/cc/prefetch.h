// Fetches memory that is needed soon, while products keep the arithmetic busy.
#pragma once

#include <algorithm>
#include <cstddef>

namespace paceline {

// Fetches a stretch of memory into the cache, a few lines at a time, while products keep the arithmetic busy.
// Without it, misses on the output took a third of the time of 32x32 images with 16 channels.
class Prefetch {
 public:
  enum Purpose { READ, WRITE };

  template <typename T>
  Prefetch(Purpose purpose, const T* from, size_t numbers, size_t turns)
      : purpose_(purpose),
        at_(reinterpret_cast<const char*>(from)),
        end_(at_ + numbers * sizeof(T)),
        step_((numbers * sizeof(T) / 64 + turns) / turns * 64) {}

  void turn() {
    const char* stop = std::min(at_ + step_, end_);
    if (purpose_ == READ)
      for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, 0, 2);
    else
      for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, 1, 3);
  }

 private:
  Purpose purpose_;
  const char *at_, *end_;
  size_t step_;
};

}  // namespace paceline
