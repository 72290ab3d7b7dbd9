// The layer in float32, a row at a time. Each pass over a row goes by vectors of W numbers.
#include <math.h>
#include <stdint.h>
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
static bool whole_lines(const float *p, long D) { return ((uintptr_t)p | 4 * D) % 64 == 0; }

// Call f(d, k, kind) for the places 0 to D - 1: for a vector at d, four of them (k) side by side,
// and for each number that is left over.
template <class F> static inline void each(long D, F f) {
  long d = 0;
  for (; d + 4 * W <= D; d += 4 * W) {
    f(d, 0, Wide());
    f(d + W, 1, Wide());
    f(d + 2 * W, 2, Wide());
    f(d + 3 * W, 3, Wide());
  }
  for (; d + W <= D; d += W) f(d, 0, Wide());
  for (; d < D; d++) f(d, 0, 0.0f);
}

// Sums of 4 W + 1 parts, so that no addition waits for the one before.
struct Sum {
  Wide part[4] = {};
  float rest = 0;
  void add(int k, Wide v) { part[k] += v; }
  void add(int, float v) { rest += v; }
  float total() const {
    Wide all = (part[0] + part[1]) + (part[2] + part[3]);
    float sum = rest;
    for (int k = 0; k < W; k++) sum += all[k];
    return sum;
  }
};

extern "C" void copy(const float *x, float *y, long N, long D, long stream) {
  stream = stream && whole_lines(y, 0);
  each(N * D, [&](long d, int, auto kind) { store(y + d, load(x + d, kind), stream); });
}

extern "C" void forward(const float *x, const float *gamma, const float *beta, float *y,
                        float *mean, float *mean_lo, float *rstd, long N, long D, long stream) {
  stream = stream && whole_lines(y, D);
  for (long n = 0; n < N; n++, x += D, y += D) {
    Sum sum, left, squares;
    each(D, [&](long d, int k, auto kind) { sum.add(k, load(x + d, kind)); });
    float m = mean[n] = sum.total() / D;
    each(D, [&](long d, int k, auto kind) {
      auto xc = load(x + d, kind) - m;
      left.add(k, xc);
      squares.add(k, xc * xc);
    });
    float lo = mean_lo[n] = left.total() / D;
    float r = rstd[n] = 1 / sqrtf(squares.total() / D - lo * lo + 1e-5f);
    each(D, [&](long d, int, auto kind) {
      auto x_hat = ((load(x + d, kind) - m) - lo) * r;
      store(y + d, x_hat * load(gamma + d, kind) + load(beta + d, kind), stream);
    });
  }
}

// Columns are added up in float32 for 16 rows, then in float64.
extern "C" void backward(const float *dy, const float *x, const float *gamma, const float *mean,
                         const float *mean_lo, const float *rstd, float *dx, double *dgamma,
                         double *dbeta, long N, long D, long stream) {
  stream = stream && whole_lines(dx, D);
  float *dgamma_16 = new float[2 * D](), *dbeta_16 = dgamma_16 + D;
  Sum gain;
  each(D, [&](long d, int k, auto kind) { gain.add(k, load(gamma + d, kind)); });
  float mean_gamma = gain.total() / D;
  for (long n = 0; n < N; n++, dy += D, x += D, dx += D) {
    float m = mean[n], lo = mean_lo[n], r = rstd[n];
    Sum sum, along_1, along_x_hat;
    each(D, [&](long d, int k, auto kind) { sum.add(k, load(dy + d, kind)); });
    float mean_dy = sum.total() / D;
    auto g = [&](long d, auto kind) { // gamma * dy, less a constant
      auto gain = load(gamma + d, kind);
      return gain * (load(dy + d, kind) - mean_dy) + mean_dy * (gain - mean_gamma);
    };
    auto x_hat = [&](long d, auto kind) { return ((load(x + d, kind) - m) - lo) * r; };
    each(D, [&](long d, int k, auto kind) {
      auto value = load(dy + d, kind), terms = value * x_hat(d, kind);
      along_1.add(k, g(d, kind));
      along_x_hat.add(k, g(d, kind) * x_hat(d, kind));
      store(dgamma_16 + d, load(dgamma_16 + d, kind) + terms, false);
      store(dbeta_16 + d, load(dbeta_16 + d, kind) + value, false);
    });
    float level = along_1.total() / D, slope = along_x_hat.total() / D;
    each(D, [&](long d, int, auto kind) {
      store(dx + d, r * (g(d, kind) - level - x_hat(d, kind) * slope), stream);
    });
    for (long d = 0; d < D && (n % 16 == 15 || n == N - 1); d++) {
      dgamma[d] += dgamma_16[d], dbeta[d] += dbeta_16[d];
      dgamma_16[d] = dbeta_16[d] = 0;
    }
  }
  delete[] dgamma_16;
}
