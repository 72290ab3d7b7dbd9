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
#define __launch_bounds__(...)
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

struct alignas(8) float2 { float x, y; };
struct float3 { float x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }

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
static inline float __half2float(__half x) { return x; }
static inline __half __float2half(float x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }

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
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
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

void __syncthreads(WHERE);
int __syncthreads_count(int predicate, WHERE);
int __syncthreads_and(int predicate, WHERE);
int __syncthreads_or(int predicate, WHERE);
void __syncwarp(unsigned mask = 0xffffffff, WHERE);
void __threadfence();
static inline void __threadfence_system() { __threadfence(); }
static inline void __threadfence_block() {}
unsigned __ballot_sync(unsigned mask, int predicate, WHERE);
static inline int __any_sync(unsigned mask, int predicate, WHERE)
{
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, WHERE)
{
    return __ballot_sync(mask, !predicate, file, line) == 0;
}

int atomicAdd(int *where, int value);
unsigned atomicAdd(unsigned *where, unsigned value);
unsigned long long atomicAdd(unsigned long long *where, unsigned long long value);
float atomicAdd(float *where, float value);
double atomicAdd(double *where, double value);
unsigned atomicInc(unsigned *where, unsigned limit);
int atomicMax(int *where, int value);
int atomicMin(int *where, int value);
int atomicExch(int *where, int value);
int atomicCAS(int *where, int expected, int value);

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

// The size of an element, and for arrays of arrays how many there are in a row.
template <class T> struct Shape { enum { element = sizeof(T), row = 0 }; };
template <class T, size_t N> struct Shape<T[N]> { enum { element = sizeof(T), row = 0 }; };
template <class T, size_t M, size_t N> struct Shape<T[M][N]> { enum { element = sizeof(T), row = N }; };

template <class T>
static inline T &shared(void **site, const char *name)
{
    return *(T *)shared(site, name, sizeof(T), Shape<T>::element, Shape<T>::row);
}

template <class T>
static inline auto dynamic_shared(void **site, const char *name)  // T is an array
{
    return &(*(T *)shared(site, name, 0, Shape<T>::element, Shape<T>::row))[0];
}

struct Argument {  // becomes whatever type the kernel's parameter has
    int k;
    template <class T> operator T *() const { return (T *)argument(k, sizeof(T)); }
    operator float() const { return real(k); }
    operator double() const { return real(k); }
    operator int() const { return whole(k); }
    operator unsigned() const { return whole(k); }
    operator long() const { return whole(k); }
    operator unsigned long() const { return whole(k); }
    operator long long() const { return whole(k); }
    operator unsigned long long() const { return whole(k); }
    operator bool() const { return whole(k); }
};

}  // namespace emulated

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, WHERE)
{
    return emulated::shuffled('=', mask, value, lane, width, file, line);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, WHERE)
{
    return emulated::shuffled('^', mask, value, bits, width, file, line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, WHERE)
{
    return emulated::shuffled('-', mask, value, delta, width, file, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, WHERE)
{
    return emulated::shuffled('+', mask, value, delta, width, file, line);
}

// Loads and stores with a hint for the cache are loads and stores. A GPU has these loads for numbers
// and built-in vectors only.
#define EMULATED_LOADS(T) \
    __device__ inline T __ldg(const T *from) { return *from; } \
    __device__ inline T __ldcs(const T *from) { return *from; } \
    __device__ inline T __ldcg(const T *from) { return *from; } \
    __device__ inline T __ldca(const T *from) { return *from; } \
    __device__ inline T __ldlu(const T *from) { return *from; }
EMULATED_LOADS(float) EMULATED_LOADS(double) EMULATED_LOADS(char) EMULATED_LOADS(signed char)
EMULATED_LOADS(unsigned char) EMULATED_LOADS(short) EMULATED_LOADS(unsigned short)
EMULATED_LOADS(int) EMULATED_LOADS(unsigned) EMULATED_LOADS(long) EMULATED_LOADS(unsigned long)
EMULATED_LOADS(long long) EMULATED_LOADS(unsigned long long) EMULATED_LOADS(float2)
EMULATED_LOADS(float4) EMULATED_LOADS(double2) EMULATED_LOADS(int2) EMULATED_LOADS(int4)
EMULATED_LOADS(uint2) EMULATED_LOADS(uint4) EMULATED_LOADS(__half) EMULATED_LOADS(__nv_bfloat16)
template <class T> __device__ inline void __stcs(T *to, T value) { *to = value; }
template <class T> __device__ inline void __stcg(T *to, T value) { *to = value; }
#undef WHERE
