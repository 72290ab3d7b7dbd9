// What CUDA's words mean where one CPU core plays the GPU. build.py puts this file in front of the
// kernels. They are compiled as they stand, by a compiler that calls a function at every access to
// memory (-fsanitize=thread); those functions, and all that is only declared here, are in emulator.cpp.
// No header is included: a GPU has none of the C library's either.

#define __global__
#define __device__ __attribute__((always_inline))  // so that what is passed by value is seen too
#define __host__
#define __constant__
#define __restrict__ __restrict
#define __forceinline__
#define __noinline__
#define __launch_bounds__(...)  // translate.py puts a check into the kernel
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __CUDACC__ 1
#define warpSize 32
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define isnan __builtin_isnan
#define isinf __builtin_isinf
#define isfinite __builtin_isfinite

typedef decltype(sizeof 0) size_t;

// ---- Types ---------------------------------------------------------------------------------------

#define EMULATED_VECTORS(T, name, most) \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; }; \
    struct name##3 { T x, y, z; }; \
    struct alignas(most) name##4 { T x, y, z, w; }; \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTORS(signed char, char, 4) EMULATED_VECTORS(unsigned char, uchar, 4) EMULATED_VECTORS(short, short, 8)
EMULATED_VECTORS(unsigned short, ushort, 8) EMULATED_VECTORS(int, int, 16) EMULATED_VECTORS(unsigned, uint, 16)
EMULATED_VECTORS(long long, longlong, 16) EMULATED_VECTORS(float, float, 16) EMULATED_VECTORS(double, double, 16)
struct dim3 { unsigned x = 1, y = 1, z = 1; };

namespace emulated {
template <class To, class From>
static To bits_of(From from)
{
    To to;
    static_assert(sizeof(To) == sizeof(From), "of the same size");
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace emulated

struct __half {  // float16: 5 bits of exponent, 10 of mantissa
    unsigned short bits;
    __half() = default;
    __half(float value)
    {
        const unsigned u = emulated::bits_of<unsigned>(value), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
        if (size > 0x7f800000)
            bits = 0x7fff;  // NaN
        else if (size >= 0x477ff000)
            bits = sign | 0x7c00;  // rounds to infinity
        else if (size < 0x38800000)  // subnormal: a multiple of 2**-24
            bits = sign | (unsigned)__builtin_rintf(__builtin_fabsf(value) * 0x1p24f);
        else
            bits = sign | (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;  // to nearest even
    }
    operator float() const
    {
        const unsigned size = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
        if (size < 0x400)
            return (sign ? -1.0f : 1.0f) * size * 0x1p-24f;
        const unsigned u = size >= 0x7c00 ? 0x7f800000 | (size & 0x3ff) << 13 : (size << 13) + (112u << 23);
        return emulated::bits_of<float>(sign | u);
    }
};

struct __nv_bfloat16 {  // the upper half of a float32
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float value)
    {
        const unsigned u = emulated::bits_of<unsigned>(value);
        bits = value != value ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
    }
    operator float() const { return emulated::bits_of<float>((unsigned)bits << 16); }
};

typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;

// Arithmetic of half types, alone and in pairs: in float32, then rounded.
#define EMULATED_HALF_OPERATION(H, name, sign) \
    static inline H __h##name(H a, H b) { return float(a) sign float(b); } \
    static inline H operator sign(H a, H b) { return float(a) sign float(b); } \
    static inline H &operator sign##=(H &a, H b) { return a = a sign b; } \
    static inline H##2 __h##name##2(H##2 a, H##2 b) { return {a.x sign b.x, a.y sign b.y}; } \
    static inline H##2 operator sign(H##2 a, H##2 b) { return {a.x sign b.x, a.y sign b.y}; }
#define EMULATED_HALF_COMPARISON(H, name, sign) static inline bool __h##name(H a, H b) { return float(a) sign float(b); }
#define EMULATED_HALF(H, word, word2) \
    struct alignas(4) H##2 { H x, y; H##2() = default; H##2(H a, H b) : x(a), y(b) {} }; \
    static inline float __##word##2float(H x) { return x; } \
    static inline H __float2##word(float x) { return x; } \
    static inline H __float2##word##_rn(float x) { return x; } \
    EMULATED_HALF_OPERATION(H, add, +) EMULATED_HALF_OPERATION(H, sub, -) EMULATED_HALF_OPERATION(H, mul, *) \
    EMULATED_HALF_OPERATION(H, div, /) \
    static inline H __hneg(H a) { return -float(a); } \
    static inline H __habs(H a) { return __builtin_fabsf(a); } \
    static inline H __hfma(H a, H b, H c) { return __builtin_fmaf(a, b, c); } \
    static inline H##2 __hfma2(H##2 a, H##2 b, H##2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    EMULATED_HALF_COMPARISON(H, lt, <) EMULATED_HALF_COMPARISON(H, gt, >) EMULATED_HALF_COMPARISON(H, le, <=) \
    EMULATED_HALF_COMPARISON(H, ge, >=) EMULATED_HALF_COMPARISON(H, eq, ==) EMULATED_HALF_COMPARISON(H, ne, !=) \
    static inline H##2 __floats2##word2##_rn(float a, float b) { return {a, b}; } \
    static inline H##2 __float22##word2##_rn(float2 a) { return {a.x, a.y}; } \
    static inline H##2 __float2##word2##_rn(float a) { return {a, a}; } \
    static inline H##2 __##word##2##word2(H a) { return {a, a}; } \
    static inline H##2 __halves2##word2(H a, H b) { return {a, b}; } \
    static inline H __low2##word(H##2 a) { return a.x; } \
    static inline H __high2##word(H##2 a) { return a.y; } \
    static inline float __low2float(H##2 a) { return a.x; } \
    static inline float __high2float(H##2 a) { return a.y; } \
    static inline float2 __##word2##2float2(H##2 a) { return {a.x, a.y}; }
EMULATED_HALF(__half, half, half2) EMULATED_HALF(__nv_bfloat16, bfloat16, bfloat162)
typedef __half2 half2;
typedef __nv_bfloat162 nv_bfloat162;

// ---- Arithmetic ----------------------------------------------------------------------------------

// A GPU's rsqrtf, expf, ... may differ in the last bits.
#define EMULATED_MATH(name) \
    static inline float name##f(float x) { return __builtin_##name##f(x); } \
    static inline double name(double x) { return __builtin_##name(x); } \
    static inline float name(float x) { return __builtin_##name##f(x); }
#define EMULATED_MATH2(name) \
    static inline float name##f(float x, float y) { return __builtin_##name##f(x, y); } \
    static inline double name(double x, double y) { return __builtin_##name(x, y); } \
    static inline float name(float x, float y) { return __builtin_##name##f(x, y); }
EMULATED_MATH(sqrt) EMULATED_MATH(fabs) EMULATED_MATH(exp) EMULATED_MATH(log) EMULATED_MATH(exp2)
EMULATED_MATH(log2) EMULATED_MATH(log10) EMULATED_MATH(log1p) EMULATED_MATH(expm1) EMULATED_MATH(sin)
EMULATED_MATH(cos) EMULATED_MATH(tanh) EMULATED_MATH(erf) EMULATED_MATH(floor) EMULATED_MATH(ceil)
EMULATED_MATH(rint) EMULATED_MATH(round) EMULATED_MATH(trunc) EMULATED_MATH(cbrt)
EMULATED_MATH2(fmax) EMULATED_MATH2(fmin) EMULATED_MATH2(pow) EMULATED_MATH2(fmod) EMULATED_MATH2(copysign)
static inline double sqrt(int x) { return __builtin_sqrt(x); }
static inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline float rsqrtf(float x) { return 1 / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
static inline float nanf(const char *) { return NAN; }
static inline int abs(int x) { return x < 0 ? -x : x; }
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline double max(double a, double b) { return __builtin_fmax(a, b); }
static inline double min(double a, double b) { return __builtin_fmin(a, b); }
#define EMULATED_EXTREMES(T) \
    static inline T max(T a, T b) { return a > b ? a : b; } \
    static inline T min(T a, T b) { return a < b ? a : b; }
EMULATED_EXTREMES(int) EMULATED_EXTREMES(unsigned) EMULATED_EXTREMES(long) EMULATED_EXTREMES(unsigned long)
EMULATED_EXTREMES(long long) EMULATED_EXTREMES(unsigned long long)

static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1 / __builtin_sqrt(x); }
static inline float __frcp_rn(float x) { return 1 / x; }
#define EMULATED_ROUNDED(name, sign) static inline float name(float x, float y) { return x sign y; }
EMULATED_ROUNDED(__fadd_rn, +) EMULATED_ROUNDED(__fsub_rn, -) EMULATED_ROUNDED(__fmul_rn, *) EMULATED_ROUNDED(__fdiv_rn, /)
EMULATED_ROUNDED(__fdividef, /)
static inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline void sincosf(float x, float *s, float *c) { *s = sinf(x), *c = cosf(x); }
static inline float __expf(float x) { return __builtin_expf(x); }
static inline float __logf(float x) { return __builtin_logf(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline float __int_as_float(int x) { return emulated::bits_of<float>(x); }
static inline int __float_as_int(float x) { return emulated::bits_of<int>(x); }
static inline float __uint_as_float(unsigned x) { return emulated::bits_of<float>(x); }
static inline unsigned __float_as_uint(float x) { return emulated::bits_of<unsigned>(x); }

// ---- Threads and memory --------------------------------------------------------------------------

extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;

#define WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()  // of the call

namespace emulated { void barrier(const char *file, int line, int number); }
// __COUNTER__ numbers the barriers of a text: two of them may stand in one line
#define __syncthreads() emulated::barrier(__FILE__, __LINE__, 1 + __COUNTER__)
int __syncthreads_count(int predicate, WHERE);
static inline int __syncthreads_or(int yes, WHERE) { return __syncthreads_count(yes, file, line) != 0; }
static inline int __syncthreads_and(int yes, WHERE) { return __syncthreads_count(!yes, file, line) == 0; }
void __syncwarp(unsigned mask = 0xffffffff, WHERE);
void __threadfence();
static inline void __threadfence_system() { __threadfence(); }
static inline void __threadfence_block() {}
unsigned __activemask(WHERE);
unsigned __ballot_sync(unsigned mask, int predicate, WHERE);
static inline int __any_sync(unsigned mask, int yes, WHERE) { return __ballot_sync(mask, yes, file, line) != 0; }
static inline int __all_sync(unsigned mask, int yes, WHERE) { return __ballot_sync(mask, !yes, file, line) == 0; }

#define EMULATED_ATOMICS(T) \
    T atomicAdd(T *where, T value), atomicSub(T *where, T value), atomicMax(T *where, T value), \
        atomicMin(T *where, T value), atomicAnd(T *where, T value), atomicOr(T *where, T value), \
        atomicXor(T *where, T value), atomicExch(T *where, T value), atomicCAS(T *where, T expected, T value);
EMULATED_ATOMICS(int) EMULATED_ATOMICS(unsigned) EMULATED_ATOMICS(unsigned long long)
float atomicAdd(float *where, float value), atomicExch(float *where, float value);
double atomicAdd(double *where, double value);
unsigned atomicInc(unsigned *where, unsigned limit);

extern "C" int emulated_printf(const char *, ...) __attribute__((format(printf, 1, 2)));
#define printf emulated_printf

namespace emulated {

// The lane to read from, by the kind of shuffle; a lane without a partner reads its own value.
void shuffle(char kind, unsigned mask, void *value, size_t bytes, int which, int width, const char *file, int line);

template <class T>
static inline T shuffled(char kind, unsigned mask, T value, int which, int width, const char *file, int line)
{
    static_assert(sizeof(T) <= 8, "a shuffle passes at most 8 bytes");
    shuffle(kind, mask, &value, sizeof value, which, width, file, line);
    return value;
}

void *shared(void **site, const char *name, size_t bytes, size_t element, size_t row);
char *argument(int k, size_t element);
double real(int k);
long long whole(int k);
int launch(void (*kernel)());
void constant_load();
void launch_bounds(unsigned most, ...);
void host_function();

// The size of an element, and for arrays of arrays how many there are in a row.
template <class T> struct Shape { enum { element = sizeof(T), row = 0 }; };
template <class T, size_t N> struct Shape<T[N]> { enum { element = sizeof(T), row = 0 }; };
template <class T, size_t M, size_t N> struct Shape<T[M][N]> { enum { element = sizeof(T), row = N }; };

template <class T> static inline T &shared(void **site, const char *name)
{
    return *(T *)shared(site, name, sizeof(T), Shape<T>::element, Shape<T>::row);
}
template <class T> static inline auto dynamic_shared(void **site, const char *name)  // T is an array
{
    return &(*(T *)shared(site, name, 0, Shape<T>::element, Shape<T>::row))[0];
}

struct Argument {  // becomes whatever type the kernel's parameter has
    int k;
    template <class T> operator T *() const { return (T *)argument(k, sizeof(T)); }
#define EMULATED_NUMBER(T, read) operator T() const { return read(k); }
    EMULATED_NUMBER(float, real) EMULATED_NUMBER(double, real) EMULATED_NUMBER(int, whole) EMULATED_NUMBER(bool, whole)
    EMULATED_NUMBER(unsigned, whole) EMULATED_NUMBER(long, whole) EMULATED_NUMBER(unsigned long, whole)
    EMULATED_NUMBER(long long, whole) EMULATED_NUMBER(unsigned long long, whole)
};

}  // namespace emulated

#define EMULATED_SHUFFLE(name, kind, Which) \
    template <class T> static inline T name(unsigned mask, T value, Which which, int width = 32, WHERE) \
    { return emulated::shuffled(kind, mask, value, which, width, file, line); }
EMULATED_SHUFFLE(__shfl_sync, '=', int) EMULATED_SHUFFLE(__shfl_xor_sync, '^', int)
EMULATED_SHUFFLE(__shfl_up_sync, '-', unsigned) EMULATED_SHUFFLE(__shfl_down_sync, '+', unsigned)

// Loads and stores with a hint for the cache are loads and stores. A GPU has these loads for numbers
// and built-in vectors only.
#define EMULATED_LOADS(T) \
    __device__ inline T __ldg(const T *from) { emulated::constant_load(); return *from; } \
    __device__ inline T __ldcs(const T *from) { return *from; } \
    __device__ inline T __ldcg(const T *from) { return *from; } \
    __device__ inline T __ldca(const T *from) { return *from; } \
    __device__ inline T __ldlu(const T *from) { return *from; }
EMULATED_LOADS(float) EMULATED_LOADS(double) EMULATED_LOADS(char) EMULATED_LOADS(signed char)
EMULATED_LOADS(unsigned char) EMULATED_LOADS(short) EMULATED_LOADS(unsigned short)
EMULATED_LOADS(int) EMULATED_LOADS(unsigned) EMULATED_LOADS(long) EMULATED_LOADS(unsigned long)
EMULATED_LOADS(long long) EMULATED_LOADS(unsigned long long) EMULATED_LOADS(float2)
EMULATED_LOADS(float4) EMULATED_LOADS(double2) EMULATED_LOADS(int2) EMULATED_LOADS(int4)
EMULATED_LOADS(uint2) EMULATED_LOADS(uint4) EMULATED_LOADS(__half) EMULATED_LOADS(__nv_bfloat16) EMULATED_LOADS(__half2)
template <class T> __device__ inline void __stcs(T *to, T value) { *to = value; }
template <class T> __device__ inline void __stcg(T *to, T value) { *to = value; }
#undef WHERE
