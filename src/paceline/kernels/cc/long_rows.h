// Convolutions of few channels, as in a stem, from an image with zeros around it: the windows of neighbouring pixels
// overlap there, so nothing is copied per pixel, as im2col does. The same bits as by im2col.
#pragma once

#include "im2col.h"

namespace paceline::long_rows {

// Rows of fewer output pixels would leave too little for the registers; with more channels, im2col is as fast.
inline bool serves(const im2col::Shape& s) { return s.ow >= 16 && s.c <= 16; }

void forward(const im2col::Shape& s, const float* x, const float* filter, float* y, const Done& done);
void filter_gradient(const im2col::Shape& s, const float* x, const float* dy, float* dfilter);

}  // namespace paceline::long_rows
