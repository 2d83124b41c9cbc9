// Elementwise arithmetic, sums and the cross-entropy, each rounded as IEEE 754 says and in an order that the shapes
// alone decide. TensorFlow's graph optimizer cannot rewrite them.
#pragma once

#include <cstddef>

namespace paceline::arithmetic {

enum Binary { ADD, SUBTRACT, MULTIPLY, DIVIDE, WHERE_POSITIVE };  // the last: b where a > 0, else 0
enum Unary { SQUARE_ROOT, EXPONENTIAL, LOGARITHM };

// y[i] = a[i] (kind) b[i]; of a or b, the first one is taken for all if its step is 0. y may be a or b.
void binary(Binary kind, size_t n, const float* a, bool a_steps, const float* b, bool b_steps, float* y);

void unary(Unary kind, size_t n, const float* x, float* y);

// y[outer][inner] = sum over the middle of x[outer][n][inner] / divisor. Sums are in double, one after the other, and
// rounded once. If inner is 1, there are eight sums, of every eighth number; then these are added from first to last.
void sum(size_t outer, size_t n, size_t inner, double divisor, const float* x, float* y);

// Of rows of logits and of targets that sum to one: the cross-entropy, and its gradient by the logits.
void cross_entropy(size_t rows, int classes, const float* logits, const float* targets, float* losses,
                   float* gradients);

}  // namespace paceline::arithmetic
