// The transforms of strips, on vectors V of LANES channels. winograd.cc includes this for each kind of vector; each lane
// computes the same as in any other kind.

// Loads into a register. Without it, g++ loads a value again for each use.
inline V load_once(const float* p) {
  V v = get(p);
#ifdef __AVX__
  asm("" : "+v"(v));
#endif
  return v;
}

// Six pixels to six points: B^T.
inline __attribute__((always_inline)) void input_points(const V (&d)[6], V (&o)[6]) {
  o[0] = fma(N0, d[0], fnma(A2 + B2, d[2], d[4]));
  const V even_a = fnma(B2, d[2], d[4]), odd_a = fnma(B2, d[1], d[3]);
  o[1] = fma(A, odd_a, even_a);
  o[2] = fnma(A, odd_a, even_a);
  const V even_b = fnma(A2, d[2], d[4]), odd_b = fnma(A2, d[1], d[3]);
  o[3] = fma(B, odd_b, even_b);
  o[4] = fnma(B, odd_b, even_b);
  o[5] = fma(N0, d[1], fnma(A2 + B2, d[3], d[5]));
}

// Six points to four pixels: A^T.
inline __attribute__((always_inline)) void output_pixels(const V (&m)[6], V (&y)[4]) {
  const V sum_a = add(m[1], m[2]), diff_a = mul(A, sub(m[1], m[2]));
  const V sum_b = add(m[3], m[4]), diff_b = sub(m[3], m[4]);
  y[0] = add(add(m[0], sum_a), sum_b);
  y[1] = fma(B, diff_b, diff_a);
  y[2] = fma(B2, sum_b, mul(A2, sum_a));
  y[3] = fma(B2 * B, diff_b, fma(A2, diff_a, m[5]));
}

// Four pixels of the output's gradient to six points: A.
inline __attribute__((always_inline)) void output_points(const V (&y)[4], V (&m)[6]) {
  const V even_a = fma(A2, y[2], y[0]), odd_a = fma(A2, y[3], y[1]);
  const V even_b = fma(B2, y[2], y[0]), odd_b = fma(B2, y[3], y[1]);
  m[0] = y[0];
  m[1] = fma(A, odd_a, even_a);
  m[2] = fnma(A, odd_a, even_a);
  m[3] = fma(B, odd_b, even_b);
  m[4] = fnma(B, odd_b, even_b);
  m[5] = y[3];
}

// Channels [0, c) of one strip of an image to V[point][tile][c], LANES VECTORS channels at a time. Columns first:
// neighbouring tiles share two of six columns. Rows outside the image are read from `zeros`.
template <int VECTORS, typename T>
void input_strip(const Shape& s, int c, int tiles, const T* image, int strip, const Buffers& b, float* v) {
  constexpr int L = LANES * VECTORS;
  const T* rows[6];
  for (int i = 0; i < 6; i++) {
    const int y = 4 * strip - 1 + i;
    rows[i] = y >= 0 && y < s.h ? image + static_cast<size_t>(y) * s.w * c : b.nothing<T>();
  }
  const int width = 4 * tiles + 2;  // column x of the image is column x + 1 here
  const size_t after = static_cast<size_t>(s.w + 1) * 6 * L;
  std::memset(b.columns, 0, 6 * L * sizeof(float));
  std::memset(b.columns + after, 0, (static_cast<size_t>(width) * 6 * L - after) * sizeof(float));
  for (int c0 = 0; c0 < c; c0 += L) {
    float* column = b.columns + 6 * L;
    for (int x = 0; x < s.w; x++, column += 6 * L) {
      const size_t at = static_cast<size_t>(x) * c + c0;
#pragma GCC unroll 2
      for (int q = 0; q < VECTORS; q++) {
        V d[6], o[6];
        for (int i = 0; i < 6; i++) d[i] = get(rows[i] + at + LANES * q);
        input_points(d, o);
        for (int i = 0; i < 6; i++) put(column + i * L + LANES * q, o[i]);
      }
    }
    for (int t = 0; t < tiles; t++) {
      const float* from = b.columns + static_cast<size_t>(t) * 4 * 6 * L;
      float* to = v + static_cast<size_t>(t) * c + c0;
      for (int i = 0; i < 6; i++) {
#pragma GCC unroll 2
        for (int q = 0; q < VECTORS; q++) {
          V d[6], o[6];
          for (int j = 0; j < 6; j++) d[j] = get(from + (j * 6 + i) * L + LANES * q);
          input_points(d, o);
          for (int j = 0; j < 6; j++) put(to + (i * 6 + j) * b.point_v + LANES * q, o[j]);
        }
      }
    }
  }
}

// M[point][tile][width] of one strip to channels [k0, k0 + width) of an image with k channels.
template <typename T>
void output_strip(const Shape& s, int k, int k0, int width, int tiles, T* image, int strip, const float* m,
                  size_t point) {
  const int high = std::min(4, s.h - 4 * strip);
  for (int t = 0; t < tiles; t++) {
    const int wide = std::min(4, s.w - 4 * t);
    T* to = image + (static_cast<size_t>(4 * strip) * s.w + 4 * t) * k + k0;
    const float* from = m + static_cast<size_t>(t) * width;
    for (int q = 0; q < width; q += LANES) {
      V half[4][6];
      for (int j = 0; j < 6; j++) {
        V p[6], y[4];
        for (int i = 0; i < 6; i++) p[i] = load_once(from + (i * 6 + j) * point + q);
        output_pixels(p, y);
        for (int i = 0; i < 4; i++) half[i][j] = y[i];
      }
      const auto write = [&](int rows, int columns) __attribute__((always_inline)) {
        for (int i = 0; i < rows; i++) {
          V y[4];
          output_pixels(half[i], y);
          for (int j = 0; j < columns; j++)
            put(to + (static_cast<size_t>(i) * s.w + j) * k + q, y[j]);
        }
      };
      if (high == 4 && wide == 4)
        write(4, 4);  // its loops are unrolled
      else
        write(high, wide);
    }
  }
}

// One strip of the output's gradient to M[point][tile][k].
template <typename T>
void gradient_strip(const Shape& s, int k, int tiles, const T* image, int strip, const Buffers& b, float* m) {
  const int high = std::min(4, s.h - 4 * strip);
  for (int t = 0; t < tiles; t++) {
    const T* pixels[4][4];
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++) {
        const size_t at = (static_cast<size_t>(4 * strip + i) * s.w + 4 * t + j) * k;
        pixels[i][j] = i < high && 4 * t + j < s.w ? image + at : b.nothing<T>();
      }
    float* to = m + static_cast<size_t>(t) * k;
    for (int q = 0; q < k; q += LANES) {
      V half[6][4];
      for (int j = 0; j < 4; j++) {
        V y[4], p[6];
        for (int i = 0; i < 4; i++) y[i] = get(pixels[i][j] + q);
        output_points(y, p);
        for (int i = 0; i < 6; i++) half[i][j] = p[i];
      }
      for (int i = 0; i < 6; i++) {
        V p[6];
        output_points(half[i], p);
        for (int j = 0; j < 6; j++) put(to + (i * 6 + j) * b.point_m + q, p[j]);
      }
    }
  }
}
