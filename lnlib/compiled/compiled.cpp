// The layer in float32. Each pass over a row goes by vectors of W numbers.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

// W: numbers in a vector of this processor. STREAM: a store that goes past the caches.
#if defined(__AVX512F__)
constexpr long W = 16;
#define STREAM(p, v) _mm512_stream_ps(p, (__m512)(v))
#elif defined(__AVX__)
constexpr long W = 8;
#define STREAM(p, v) _mm256_stream_ps(p, (__m256)(v))
#elif defined(__SSE2__)
constexpr long W = 4;
#define STREAM(p, v) _mm_stream_ps(p, (__m128)(v))
#else // not x86: a plain store
constexpr long W = 4;
#define STREAM(p, v) (*(Wide *)(p) = (v))
#endif
typedef float Wide __attribute__((vector_size(4 * W), aligned(4), may_alias));

static inline Wide load(const float *p, Wide) { return *(const Wide *)p; }
static inline float load(const float *p, float) { return *p; }
static inline void store(float *p, float v, bool) { *p = v; }
static inline void store(float *p, Wide v, bool stream) {
  if (stream)
    STREAM(p, v);
  else
    *(Wide *)p = v;
}
static inline void soon(const float *p, Wide) { __builtin_prefetch(p, 0, 2); } // to the L2 cache
static inline void soon(const float *, float) {}
// How many of D numbers stand before a line of memory begins: a streaming store fills whole lines.
static inline long before_line(const float *p, long D, bool stream) {
  long few = stream ? -(uintptr_t)p / 4 % 16 : 0;
  return few < D ? few : D;
}

// A sum in 4 W + 1 parts, so that no addition waits for the one before.
struct Sum {
  Wide part[4] = {};
  float rest = 0;
  double total = 0;
  void add(int k, Wide v) { part[k] += v; }
  void add(int, float v) { rest += v; }
  void fold() {
    float all[W];
    *(Wide *)all = (part[0] + part[1]) + (part[2] + part[3]);
    for (long half = W / 2; half > 0; half /= 2)
      for (long k = 0; k < half; k++) all[k] += all[k + half];
    total += all[0] + rest;
    part[0] = part[1] = part[2] = part[3] = Wide();
    rest = 0;
  }
};

// Call f(d, k, kind) for the places 0 to D - 1 of a row: for each of the first numbers, then for
// vectors, of which four (k) stand side by side, then for each number that is left over. The sums
// are folded after 16 additions.
template <class F, class... Sums> static inline void each(long first, long D, F f, Sums &...sums) {
  for (long d = 0; d < first; d++) f(d, 0, 0.0f);
  for (long d = first, end; d < D;) {
    end = d + 64 * W < D ? d + 64 * W : D;
    for (; d + 4 * W <= end; d += 4 * W) {
      f(d, 0, Wide());
      f(d + W, 1, Wide());
      f(d + 2 * W, 2, Wide());
      f(d + 3 * W, 3, Wide());
    }
    for (; d + W <= end; d += W) f(d, 0, Wide());
    for (; d < end; d++) f(d, 0, 0.0f);
    (sums.fold(), ...);
  }
}

extern "C" void copy(const float *x, float *y, long N, long D, long stream) {
  long first = before_line(y, N * D, stream);
  each(first, N * D, [&](long d, int, auto kind) { store(y + d, load(x + d, kind), stream); });
}

static inline float mean_of_first(const float *x, long few) {
  Sum sum;
  auto add_up = [&](long d, int k, auto kind) { sum.add(k, load(x + d, kind) - x[0]); };
  each(0, few, add_up, sum);
  return x[0] + sum.total / few;
}

static inline void finish(const float *x, const float *gamma, const float *beta,
                          float *y, float m, float lo, float r,
                          long D, bool stream, long ahead) {
  long first = before_line(y, D, stream);
  each(first, D, [&](long d, int, auto kind) {
    if (ahead) soon(x + ahead + d, kind);
    auto x_hat = ((load(x + d, kind) - m) - lo) * r;
    auto gain = load(gamma + d, kind), shift = load(beta + d, kind);
    store(y + d, x_hat * gain + shift, stream);
  });
}

// step, from row to row, is D; with 0 the loop stays on one row, to time the work alone.
extern "C" void forward(const float *x, const float *gamma, const float *beta,
                        float *y, float *mean, float *mean_lo, float *rstd,
                        long N, long D, long stream, long step) {
  for (long n = 0; n < N; n++) {
    const float *row = x + n * step;
    float m = mean_of_first(row, D < 64 ? D : 64);
    double rest, var;
    for (bool last = false;; last = true, m += rest) {
      Sum left, squares;
      auto add_up = [&](long d, int k, auto kind) {
        auto xc = load(row + d, kind) - m;
        left.add(k, xc);
        squares.add(k, xc * xc);
      };
      each(0, D, add_up, left, squares);
      rest = left.total / D, var = squares.total / D - rest * rest;
      if (last || 8 * rest * rest <= var) break; // else it was a bad guess
    }
    mean[n] = m, mean_lo[n] = rest, rstd[n] = 1 / sqrt(var + 1e-5);
    // x, gamma and beta of a row are 12 D bytes. If they need more than half of the L1
    // cache, rows are fetched early, two ahead. If they do not fit, two rows are finished
    // together, tile by tile: gamma and beta come from the L2 cache once for both. Tiles
    // end at lines of y.
    const long L1 = 32768; // bytes
    if (24 * D <= L1) {
      finish(row, gamma, beta, y + n * step, m, rest, rstd[n], D, stream, 0);
      continue;
    }
    bool pairs = 12 * D > L1;
    if (pairs && n % 2 == 0 && n < N - 1) continue;
    long tile = pairs ? 1024 : D, ahead = 2 * step;
    for (long d = 0; d < D; d += tile)
      for (long k = pairs ? n - n % 2 : n; k <= n; k++) {
        long first = before_line(y + k * step, D, stream), from = d > 0 ? d + first : 0;
        long end = d + tile + first < D ? d + tile + first : D, at = k * step + from;
        finish(x + at, gamma + from, beta + from, y + at, mean[k], mean_lo[k], rstd[k],
               end - from, stream, ahead);
      }
  }
}

// The layer as a beginner writes it: each sum in one part, centred once. It keeps no promise.
extern "C" void plain(const float *x, const float *gamma, const float *beta, float *y, long N,
                      long D) {
  for (long n = 0; n < N; n++, x += D, y += D) {
    float sum = 0, squares = 0;
    for (long d = 0; d < D; d++) sum += x[d];
    float mean = sum / D;
    for (long d = 0; d < D; d++) squares += (x[d] - mean) * (x[d] - mean);
    float r = 1 / sqrt(squares / D + 1e-5);
    for (long d = 0; d < D; d++) y[d] = (x[d] - mean) * r * gamma[d] + beta[d];
  }
}

// Where backward keeps its numbers of column d. Lesson 07 sets another place, to time the same work
// with hardly any memory for them.
#ifndef PLACE
#define PLACE(d) (d)
#endif

// dgamma and dbeta are added up in float32 for 64 rows, then in float64.
extern "C" void backward(const float *dy, const float *x, const float *gamma, const float *mean,
                         const float *mean_lo, const float *rstd, float *dx, double *dgamma,
                         double *dbeta, long N, long D, long stream) {
  // gamma and the two sums. They begin at different places of a page, so they use different sets of
  // the L1 cache. And they begin as dx does, so nearly all of their vectors are whole lines.
  long apart = (D + 1023) / 1024 * 1024 + 352;
  float *all = (float *)aligned_alloc(64, 4 * 4 * apart);
  float *gain = all + (16 - before_line(dx, 16, stream)) % 16;
  float *some[] = {gain + apart, gain + 2 * apart};
  for (long d = 0; d < D; d++) gain[d] = gamma[d], some[0][d] = some[1][d] = 0;
  for (long n = 0; n < N; n++, dy += D, x += D, dx += D) {
    float m = mean[n], lo = mean_lo[n], r = rstd[n], c = 0;
    auto g = [&](long d, auto kind) { return load(gain + PLACE(d), kind) * load(dy + d, kind) - c; };
    Sum left, with_x;
    double rest; // the mean of g
    for (bool last = false;; last = true, c = rest) {
      left = with_x = Sum();
      Sum squares;
      auto add_up = [&](long d, int k, auto kind) {
        auto value = g(d, kind);
        left.add(k, value);
        squares.add(k, value * value);
        with_x.add(k, value * (load(x + d, kind) - m));
      };
      each(0, D, add_up, left, with_x, squares);
      rest = left.total / D;
      if (last || 8 * rest * rest <= squares.total / D) break; // else it is far from 0
    }
    // lo is subtracted from sums, not from each x - m
    double slope = (double)r * r * r * (with_x.total / D - lo * rest);
    float level = r * rest - slope * lo, steep = slope, shift = -lo * r;
    long first = before_line(dx, D, stream);
    each(first, D, [&](long d, int, auto kind) {
      auto value = load(dy + d, kind), xm = load(x + d, kind) - m;
      soon(dy + 2 * D + d, kind), soon(x + 2 * D + d, kind);
      float *of_gamma = some[0] + PLACE(d), *of_beta = some[1] + PLACE(d);
      store(of_gamma, load(of_gamma, kind) + value * (xm * r + shift), false);
      store(of_beta, load(of_beta, kind) + value, false);
      store(dx + d, r * g(d, kind) - level - steep * xm, stream);
    });
    if (n % 64 == 63 || n == N - 1) {
      for (long d = 0; d < D; d++) dgamma[d] += some[0][d], some[0][d] = 0;
      for (long d = 0; d < D; d++) dbeta[d] += some[1][d], some[1][d] = 0;
    }
  }
  free(all);
}

// Each walk goes to the number that it stands on, so its load waits for the load before.
extern "C" void walk(const int64_t *next, int64_t *at, long walks, long steps) {
  for (long step = 0; step < steps; step++)
    for (long k = 0; k < walks; k++) at[k] = next[at[k]];
}
