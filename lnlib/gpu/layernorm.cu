// LayerNorm in CUDA C++: y = gamma * (x - mean) / sqrt(var + eps) + beta for every row of x, and
// the gradients. Numbers are stored as float, __half or __nv_bfloat16; all arithmetic is in
// float32.
//
// If you have never read CUDA. A kernel (marked __global__) is a function that very many threads
// run at the same time. Local variables live in registers: every thread has its own, and no memory
// is faster. 32 threads form a warp; they are its lanes, and can read each other's registers
// (__shfl_xor_sync). Several warps form a block: its threads share a little fast memory
// (__shared__) and can wait for each other (__syncthreads is a barrier: nobody goes on until all
// have arrived). Blocks work independently of each other. threadIdx.x and blockIdx.x tell a thread
// who it is.
//
// The arrays that a kernel is given lie in global memory: large, far away, and here what costs most
// of the time. So the aim is to touch it as little as possible: read x once, write y once.
//
// THREADS threads work on one row at a time. The row is cut into vectors of WIDTH numbers, and
// thread t of the row owns vectors t, t + THREADS, t + 2 * THREADS, ...: neighbours read neighbours
// in memory.

// A half type needs its header. The launcher defines these words for the kernels that need them.
#ifdef WITH_BFLOAT16
#include <cuda_bf16.h>
#endif
#ifdef WITH_HALF
#include <cuda_fp16.h>
#endif

// WIDTH numbers that are loaded or stored together: 16 bytes by one instruction if WIDTH is 4, or 8
// for the half types. That needs D to be a multiple of WIDTH and arrays that start at a multiple of
// 16 bytes; otherwise WIDTH is 1. (8 floats, beside 8 half numbers, take two instructions.)
template <int WIDTH, class T = float>
struct alignas(sizeof(T) * WIDTH < 16 ? sizeof(T) * WIDTH : 16) Vector {
    T at[WIDTH];
};
using Four = Vector<4>;

// Converts numbers as memory stores them to float, as registers hold them.
template <int WIDTH, class T>
__device__ Vector<WIDTH> wide(Vector<WIDTH, T> stored)
{
    Vector<WIDTH> row;
    for (int j = 0; j < WIDTH; j++)
        row.at[j] = float(stored.at[j]);
    return row;
}

// Converts numbers from float to the type T that memory stores, rounding each once.
template <class T, int WIDTH>
__device__ Vector<WIDTH, T> narrow(Vector<WIDTH> row)
{
    Vector<WIDTH, T> stored;
    for (int j = 0; j < WIDTH; j++)
        stored.at[j] = T(row.at[j]);
    return stored;
}

// A block may hold several groups of THREADS threads, each with a row of its own. This is the
// thread's number within its group.
template <int THREADS>
__device__ int member()
{
    return threadIdx.x % THREADS;
}

// The number of the row that this thread's group works on first.
template <int THREADS, int ROWS>
__device__ long long first_row()
{
    static_assert(THREADS == 32 || ROWS == 1, "block_sum knows one group, or groups of one warp");
    return (long long)blockIdx.x * ROWS + threadIdx.x / THREADS;
}

// ---- Sums over a block --------------------------------------------------------------------------

template <int WIDTH>
__device__ Vector<WIDTH> operator+(Vector<WIDTH> a, Vector<WIDTH> b)
{
    for (int j = 0; j < WIDTH; j++)
        a.at[j] += b.at[j];
    return a;
}

__device__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

// Adds a term to a sum, and keeps what rounding took from it for the next time (Kahan). For
// sums of many terms.
__device__ void add(float &sum, float &lost, float term)
{
    const float more = term - lost, total = sum + more;
    lost = total - sum - more;
    sum = total;
}

// The value of the lane whose number differs from this lane's in the bits of `bits`.
template <class T>
__device__ T other_lane(T value, int bits)
{
    return __shfl_xor_sync(0xffffffff, value, bits);
}

__device__ float2 other_lane(float2 value, int bits)
{
    return make_float2(other_lane(value.x, bits), other_lane(value.y, bits));
}

// Pairs of lanes, then pairs of pairs, ...: after five steps every lane has the sum of all 32. If
// only LANES numbers are different, lane by lane, fewer steps give their sum.
template <int LANES = 32, class T>
__device__ T warp_sum(T value, int first_bit = 1)
{
    for (int bits = first_bit; bits < LANES; bits *= 2)
        value = value + other_lane(value, bits);
    return value;
}

// Every thread gets the sum over its row's threads, the same bits in all of them: over the whole
// block, or over the warp if that has a row of its own. A call must not use the slots of the call
// before it: each type T has its own, and so has each buffer. Then one barrier per call is enough:
// whoever writes into slots again has passed the other call's barrier, where all had read these.
template <int THREADS, class T>
__device__ T block_sum(T value, int buffer)
{
    value = warp_sum(value);
    if (THREADS == 32)
        return value;
    const int WARPS = THREADS / 32;  // 2, 4, 8, 16 or 32
    __shared__ T slots[2][WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0)
        slots[buffer][warp] = value;
    __syncthreads();
    return warp_sum<WARPS>(slots[buffer][lane % WARPS]);
}

// ---- Forward ------------------------------------------------------------------------------------

// NaN where float32 cannot hold the squares of the row (they overflow, or vanish and eps is tiny):
// better visibly not finite than finite and wrong. CuPy compiles with -ftz=true: numbers below
// 2**-126 count as zero, in x and in what is computed. As rstd is at most 1e15, that moves an x_hat
// by less than 1e-22, and y by gamma times that.
__device__ float reciprocal_std(float var, float eps)
{
    const float square = var + eps;
    return square > 1e-30f && square < 3e38f ? 1.0f / sqrtf(square) : nanf("");
}

// This thread's part of a row (or of gamma, with start 0) into registers. All loads are in flight
// before the first is needed. Vectors past the end of the row are padding, and zero.
template <int THREADS, int VECTORS, int WIDTH, class T>
__device__ void load(
    const Vector<WIDTH, T> *from, long long start, int vectors, Vector<WIDTH> (&row)[VECTORS])
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = member<THREADS>() + v * THREADS;
        row[v] = i < vectors ? wide(from[start + i]) : Vector<WIDTH>();
    }
}

// This thread's part of a row out of registers into memory; the padding is not stored.
template <int THREADS, int VECTORS, int WIDTH, class T>
__device__ void store(
    Vector<WIDTH, T> *to, long long start, int vectors, const Vector<WIDTH> (&row)[VECTORS])
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = member<THREADS>() + v * THREADS;
        if (i < vectors)
            to[start + i] = narrow<T>(row[v]);
    }
}

// The sum of a vector's numbers: the two halves are added, then the halves of that, ... The fewer
// additions a large number goes through, the fewer digits it takes from the others.
template <int WIDTH>
__device__ float sum(Vector<WIDTH> terms)
{
#pragma unroll
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            terms.at[j] += terms.at[j + half];
    return terms.at[0];
}

template <int WIDTH>
__device__ Vector<WIDTH> product(Vector<WIDTH> a, Vector<WIDTH> b)
{
    for (int j = 0; j < WIDTH; j++)
        a.at[j] *= b.at[j];
    return a;
}

template <int WIDTH>
__device__ Vector<WIDTH> operator-(Vector<WIDTH> row, float mean)
{
    for (int j = 0; j < WIDTH; j++)
        row.at[j] -= mean;
    return row;
}

// The sum of what this thread holds of the row. Vectors are added up first: WIDTH sums, none of
// which waits for another.
template <int VECTORS, int WIDTH>
__device__ float sum(const Vector<WIDTH> (&row)[VECTORS])
{
    Vector<WIDTH> total = row[0];
#pragma unroll
    for (int v = 1; v < VECTORS; v++)
        total = total + row[v];
    return sum(total);
}

template <int VECTORS, int WIDTH>
__device__ float sum_of_squares(const Vector<WIDTH> (&row)[VECTORS])
{
    Vector<WIDTH> total = product(row[0], row[0]);
#pragma unroll
    for (int v = 1; v < VECTORS; v++)
        total = total + product(row[v], row[v]);
    return sum(total);
}

// Subtracts the mean from this thread's part of a row. The padding must stay zero, because it is
// added up too.
template <int THREADS, int VECTORS, int WIDTH>
__device__ void subtract(Vector<WIDTH> (&row)[VECTORS], float mean, int vectors)
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (member<THREADS>() + v * THREADS < vectors)
            row[v] = row[v] - mean;
}

// A block has ROWS rows: one, or if rows are short one in every warp. Each is loaded once and stays
// in registers, so that centring it twice and squaring what is left costs no more traffic.
// (__restrict__ promises that the array overlaps no other: loads may then be moved ahead of stores.
// __launch_bounds__ lets the compiler count on at most so many threads when it hands out registers.
// Its second number is how many blocks shall fit on a multiprocessor: with 1024 threads in all, a
// thread gets at most 64 registers. We ask for that on a T4, which holds 1024 threads, and where
// the compiler would miss it by a few, or spill. sm_70 would spill if asked. 0 asks for nothing.)
#if __CUDA_ARCH__ < 750
#define CAPPED false
#else
#define CAPPED (__CUDA_ARCH__ == 750 || THREADS == 512 || sizeof(T) < sizeof(P))
#endif
template <int THREADS, int VECTORS, int WIDTH, int ROWS = 1, class T = float, class P = T>
__global__ void __launch_bounds__(THREADS * ROWS, CAPPED ? 1024 / (THREADS * ROWS) : 0) forward(
    const Vector<WIDTH, T> *x, const Vector<WIDTH, P> *gamma, const Vector<WIDTH, P> *beta,
    Vector<WIDTH, T> *__restrict__ y, float *__restrict__ mean, float *__restrict__ mean_lo,
    float *__restrict__ rstd, float eps, float one_over_D, long long rows, int D)
{
    const int vectors = D / WIDTH;
    const long long n = first_row<THREADS, ROWS>();
    if (n >= rows)  // the last block may have fewer than ROWS
        return;
    const long long start = n * vectors;  // x can have more than 2**31 entries

    Vector<WIDTH> xc[VECTORS];
    load<THREADS>(x, start, vectors, xc);
    const float rounded_mean = block_sum<THREADS>(sum(xc), 0) * one_over_D;
    subtract<THREADS>(xc, rounded_mean, vectors);
    const float rest = block_sum<THREADS>(sum(xc), 1) * one_over_D;  // what rounding took
    subtract<THREADS>(xc, rest, vectors);
    const float var = block_sum<THREADS>(sum_of_squares(xc), 0) * one_over_D;
    const float r = reciprocal_std(var, eps);

#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = member<THREADS>() + v * THREADS;
        const Vector<WIDTH> gain = i < vectors ? wide(gamma[i]) : Vector<WIDTH>();
        const Vector<WIDTH> shift = i < vectors ? wide(beta[i]) : Vector<WIDTH>();
        for (int j = 0; j < WIDTH; j++)
            xc[v].at[j] = gain.at[j] * (xc[v].at[j] * r) + shift.at[j];
        if (i < vectors)
            y[start + i] = narrow<T>(xc[v]);
    }
    if (member<THREADS>() == 0) {
        mean[n] = rounded_mean;
        mean_lo[n] = rest;  // one float32 would lose it
        rstd[n] = r;
    }
}

// The same pass without keeping the row: every step reads x again. It takes rows of any length, and
// measures what the registers are worth.
template <int THREADS, int WIDTH, class T = float, class P = T>
__global__ void __launch_bounds__(THREADS) forward_looping(
    const Vector<WIDTH, T> *x, const Vector<WIDTH, P> *gamma, const Vector<WIDTH, P> *beta,
    Vector<WIDTH, T> *__restrict__ y, float *__restrict__ mean, float *__restrict__ mean_lo,
    float *__restrict__ rstd, float eps, float one_over_D, long long rows, int D)
{
    const int vectors = D / WIDTH;
    const long long start = (long long)blockIdx.x * vectors;

    float total = 0, lost = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS)
        add(total, lost, sum(wide(x[start + i])));
    const float rounded_mean = block_sum<THREADS>(total, 0) * one_over_D;

    total = lost = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS)
        add(total, lost, sum(wide(x[start + i]) - rounded_mean));
    const float rest = block_sum<THREADS>(total, 1) * one_over_D;

    total = lost = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const Vector<WIDTH> xc = wide(x[start + i]) - rounded_mean - rest;
        add(total, lost, sum(product(xc, xc)));
    }
    const float r = reciprocal_std(block_sum<THREADS>(total, 0) * one_over_D, eps);

    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const Vector<WIDTH> gain = wide(gamma[i]), shift = wide(beta[i]);
        Vector<WIDTH> xc = wide(x[start + i]) - rounded_mean - rest;
        for (int j = 0; j < WIDTH; j++)
            xc.at[j] = gain.at[j] * (xc.at[j] * r) + shift.at[j];
        y[start + i] = narrow<T>(xc);
    }
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = rounded_mean;
        mean_lo[blockIdx.x] = rest;
        rstd[blockIdx.x] = r;
    }
}

// ---- Backward: one row --------------------------------------------------------------------------
// dgamma is the sum over the rows of dy * x_hat, dbeta that of dy. With g = gamma * dy, dx is
// rstd * (g - mean(g) - x_hat * mean(g * x_hat)). One sum over the row finds both means. But if
// mean(g) is large, rounding leaves a part of it in each g - mean(g), as it does in x - mean(x).
// Such a row is added up once more, and now the first mean is subtracted before the product
// gamma * dy is rounded: fmaf(a, b, c) is a * b + c, rounded once.

// x_hat from x and the three saved numbers of its row.
struct Row {
    float mean, mean_lo, rstd;
    template <int WIDTH>
    __device__ Vector<WIDTH> x_hat(Vector<WIDTH> x) const
    {
        for (int j = 0; j < WIDTH; j++)
            x.at[j] = (x.at[j] - mean - mean_lo) * rstd;
        return x;
    }
};

// Load the row's x and dy, once, and turn x into x_hat. In the padding dy is zero, so that it does
// not matter what x_hat is there, and no branch is needed. All loads shall be in flight before the
// first is needed: PTX keeps this order; what ptxas makes of read-only loads, only SASS shows.
template <int THREADS, int VECTORS, int WIDTH, class T>
__device__ void load_row(
    const Vector<WIDTH, T> *x, const Vector<WIDTH, T> *dy, Row row, long long start, int vectors,
    Vector<WIDTH> (&x_hat)[VECTORS], Vector<WIDTH> (&d)[VECTORS])
{
    load<THREADS>(x, start, vectors, x_hat);
    load<THREADS>(dy, start, vectors, d);
    __syncwarp();  // no load is moved past this in PTX
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        x_hat[v] = row.x_hat(x_hat[v]);
}

// Sums of g, of its squares and of g * x_hat.
struct Sums3 { float g, square, gx; };

__device__ Sums3 operator+(Sums3 a, Sums3 b)
{
    return Sums3{a.g + b.g, a.square + b.square, a.gx + b.gx};
}

__device__ Sums3 other_lane(Sums3 value, int bits)
{
    return Sums3{
        other_lane(value.g, bits), other_lane(value.square, bits), other_lane(value.gx, bits)};
}

// What a vector adds to the sums, if `less` is subtracted from g.
template <int WIDTH>
__device__ Sums3 terms(Vector<WIDTH> gain, Vector<WIDTH> d, Vector<WIDTH> x_hat, float less)
{
    Vector<WIDTH> g;
    for (int j = 0; j < WIDTH; j++)
        g.at[j] = fmaf(gain.at[j], d.at[j], -less);
    return Sums3{sum(g), sum(product(g, g)), sum(product(g, x_hat))};
}

// The three numbers of a row that dx needs: the mean of g in two parts, and that of g * x_hat.
struct Means { float mean, rest, gx; };

// sums_without(less) is this thread's part of the sums, with less subtracted from g. Where the mean
// is small beside the spread of g, one sum is enough. If its parts in all products are rounded the
// same way, an outlier of x_hat multiplies what that leaves by up to sqrt(D): hence the limit.
template <int THREADS, class F>
__device__ Means means_of(F sums_without, float one_over_D, int buffer)
{
    const Sums3 first = block_sum<THREADS>(sums_without(0.0f), buffer);
    const float mean = first.g * one_over_D, square = first.square * one_over_D;
    const float var = square - mean * mean, limit = fmaxf(2, 1 / (36 * one_over_D));
    const bool in_range = square > 1e-30f && square < 3e38f;
    if (mean == 0 || in_range && limit * mean * mean <= var)  // the same in all threads of the row
        return Means{mean, 0, first.gx * one_over_D};
    const Sums3 again = sums_without(mean);
    const float2 sums = block_sum<THREADS>(make_float2(again.g, again.gx), 0);
    return Means{mean, sums.x * one_over_D, sums.y * one_over_D};
}

// A vector of dx.
template <int WIDTH>
__device__ Vector<WIDTH> dx_of(
    Vector<WIDTH> gain, Vector<WIDTH> d, Vector<WIDTH> x_hat, Means of, float rstd)
{
    Vector<WIDTH> dx;
    for (int j = 0; j < WIDTH; j++) {
        const float g = fmaf(gain.at[j], d.at[j], -of.mean);
        dx.at[j] = rstd * (g - of.rest - x_hat.at[j] * of.gx);
    }
    return dx;
}

// From x_hat and dy in registers to dx. gamma is read for each step: in between it takes none.
template <int THREADS, int VECTORS, int WIDTH, class T, class P>
__device__ void write_dx(
    const Vector<WIDTH, P> *gamma, Vector<WIDTH, T> *__restrict__ dx, float rstd, long long start,
    int vectors, float one_over_D, int buffer, const Vector<WIDTH> (&x_hat)[VECTORS],
    const Vector<WIDTH> (&d)[VECTORS])
{
    __syncwarp();  // in PTX no load is moved past this: registers would be too few
    auto sums_without = [&](float less) {
        Sums3 sums = {};
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const int i = member<THREADS>() + v * THREADS;
            const bool there = i < vectors;  // the padding adds nothing, and no branch is needed:
            const Vector<WIDTH> gain = there ? wide(gamma[i]) : Vector<WIDTH>();  // all in flight
            sums = sums + terms(gain, d[v], x_hat[v], there ? less : 0.0f);
        }
        return sums;
    };
    const Means of = means_of<THREADS>(sums_without, one_over_D, buffer);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = member<THREADS>() + v * THREADS;
        if (i < vectors)
            dx[start + i] = narrow<T>(dx_of(wide(gamma[i]), d[v], x_hat[v], of, rstd));
    }
}

// ---- Backward, first try: every block adds its row to dgamma and dbeta --------------------------
// Blocks get in each other's way, and the order of the additions, hence the rounding, is left to
// chance. dgamma and dbeta must be zero before.
template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) backward_atomic(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const float *mean, const float *mean_lo, const float *rstd, Vector<WIDTH> *__restrict__ dx,
    float *dgamma, float *dbeta, float one_over_D, long long rows, int D)
{
    const int vectors = D / WIDTH;
    const long long start = (long long)blockIdx.x * vectors;
    const Row row = {mean[blockIdx.x], mean_lo[blockIdx.x], rstd[blockIdx.x]};
    Vector<WIDTH> x_hat[VECTORS], d[VECTORS];
    load_row<THREADS>(x, dy, row, start, vectors, x_hat, d);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = threadIdx.x + v * THREADS;
        if (i < vectors)
            for (int j = 0; j < WIDTH; j++) {
                atomicAdd(&dgamma[i * WIDTH + j], d[v].at[j] * x_hat[v].at[j]);
                atomicAdd(&dbeta[i * WIDTH + j], d[v].at[j]);
            }
    }
    write_dx<THREADS>(gamma, dx, row.rstd, start, vectors, one_over_D, 0, x_hat, d);
}

// ---- Backward, two stages -----------------------------------------------------------------------
// Stage 1: few blocks, each with many rows. A block works on ROWS rows at a time: one, or if rows
// are short one in every warp. It adds its rows up on the chip and writes one row of partial sums:
// dgamma's D columns, then dbeta's. Every thread has sums of its own, for the columns it owns: no
// barrier, no atomics. Where a multiprocessor has much shared memory, the sums are kept there, and
// the registers hold more of x_hat and dy; else the sums are in registers, and ROWS must be 1.
enum Sums { IN_SHARED, IN_REGISTERS };

// Adds a row to this thread's sums, four at a time (16 bytes of shared memory): those of dgamma,
// then those of dbeta. From one four to the next it is APART.
template <int APART, int VECTORS, int WIDTH>
__device__ void add_row(
    Four *sums, const Vector<WIDTH> (&x_hat)[VECTORS], const Vector<WIDTH> (&d)[VECTORS])
{
    const int FOURS = VECTORS * WIDTH / 4;
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        Four dgamma = sums[k * APART], dbeta = sums[(FOURS + k) * APART];
        for (int j = 0; j < 4; j++) {
            const int v = (4 * k + j) / WIDTH, w = (4 * k + j) % WIDTH;
            dgamma.at[j] += d[v].at[w] * x_hat[v].at[w];
            dbeta.at[j] += d[v].at[w];
        }
        sums[k * APART] = dgamma;
        sums[(FOURS + k) * APART] = dbeta;
    }
}

template <int THREADS, int VECTORS, int WIDTH, int ROWS, Sums SUMS, class T, class P>
__device__ void backward_rows(
    const Vector<WIDTH, T> *x, const Vector<WIDTH, T> *dy, const Vector<WIDTH, P> *gamma,
    const float *mean, const float *mean_lo, const float *rstd,
    Vector<WIDTH, T> *__restrict__ dx, Vector<WIDTH> *__restrict__ partial, float one_over_D,
    long long rows, int D)
{
    const int FOURS = VECTORS * WIDTH / 4, BLOCK = THREADS * ROWS;
    const int APART = SUMS == IN_SHARED ? BLOCK : 1;
    extern __shared__ Four shared_sums[];  // 2 * FOURS * BLOCK of them: the launch sets the size
    Four own_sums[2 * FOURS];
    Four *sums = SUMS == IN_SHARED ? shared_sums + threadIdx.x : own_sums;
#pragma unroll
    for (int k = 0; k < 2 * FOURS; k++)
        sums[k * APART] = Four();

    const int vectors = D / WIDTH;
    int buffer = 0;
    for (long long n = first_row<THREADS, ROWS>(); n < rows; n += gridDim.x * ROWS) {
        const Row row = {mean[n], mean_lo[n], rstd[n]};
        const long long start = n * vectors;
        Vector<WIDTH> x_hat[VECTORS], d[VECTORS];
        load_row<THREADS>(x, dy, row, start, vectors, x_hat, d);
        add_row<APART>(sums, x_hat, d);
        write_dx<THREADS>(gamma, dx, row.rstd, start, vectors, one_over_D, buffer, x_hat, d);
        buffer = 1 - buffer;
    }

    const int group = threadIdx.x / THREADS;
    for (int groups = ROWS / 2; groups > 0; groups /= 2) {  // half of them take the others' sums
        __syncthreads();
        if (group < groups)
            for (int k = 0; k < 2 * FOURS; k++)
                sums[k * APART] = sums[k * APART] + sums[k * APART + groups * THREADS];
    }
    if (group > 0)
        return;
    const long long start = (long long)blockIdx.x * 2 * vectors;
    for (int which = 0; which < 2; which++) {  // dgamma, dbeta
        Vector<WIDTH> row[VECTORS];
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            const Four four = sums[(which * FOURS + k) * APART];
            for (int j = 0; j < 4; j++)
                row[(4 * k + j) / WIDTH].at[(4 * k + j) % WIDTH] = four.at[j];
        }
        store<THREADS>(partial, start + which * vectors, vectors, row);
    }
}

// BLOCKS is how many blocks shall fit on one multiprocessor: more registers than that leaves are
// not used, but all of those are, for loads in flight.
template <
    int THREADS, int VECTORS, int WIDTH, int ROWS, int BLOCKS, Sums SUMS = IN_SHARED,
    class T = float, class P = T>
__global__ void __launch_bounds__(THREADS * ROWS, BLOCKS) backward(
    const Vector<WIDTH, T> *x, const Vector<WIDTH, T> *dy, const Vector<WIDTH, P> *gamma,
    const float *mean, const float *mean_lo, const float *rstd,
    Vector<WIDTH, T> *__restrict__ dx, Vector<WIDTH> *__restrict__ partial, float one_over_D,
    long long rows, int D)
{
    backward_rows<THREADS, VECTORS, WIDTH, ROWS, SUMS>(
        x, dy, gamma, mean, mean_lo, rstd, dx, partial, one_over_D, rows, D);
}

// ---- Backward of rows whose sums do not fit on the chip -----------------------------------------
// Two kernels: x and dy are read twice, or three times if mean(g) is large. The first finds Means.
template <int THREADS, int WIDTH, class T = float, class P = T>
__global__ void __launch_bounds__(THREADS, 1) row_means(
    const Vector<WIDTH, T> *x, const Vector<WIDTH, T> *dy, const Vector<WIDTH, P> *gamma,
    const float *mean, const float *mean_lo, const float *rstd, Means *__restrict__ means,
    float one_over_D, long long rows, int D)
{
    const int vectors = D / WIDTH;
    const long long start = (long long)blockIdx.x * vectors;
    const Row row = {mean[blockIdx.x], mean_lo[blockIdx.x], rstd[blockIdx.x]};
    auto sums_without = [&](float less) {
        Sums3 sums = {}, lost = {};
#pragma unroll 4
        for (int i = threadIdx.x; i < vectors; i += THREADS) {
            const Vector<WIDTH> x_hat = row.x_hat(wide(x[start + i]));
            const Sums3 more = terms(wide(gamma[i]), wide(dy[start + i]), x_hat, less);
            add(sums.g, lost.g, more.g);
            add(sums.gx, lost.gx, more.gx);
            sums.square += more.square;
        }
        return sums;
    };
    const Means of = means_of<THREADS>(sums_without, one_over_D, 0);
    if (threadIdx.x == 0)
        means[blockIdx.x] = of;
}

// The second kernel walks down the columns: a thread owns one vector of them, and needs no other
// thread. So its sums fit into registers however long a row is, and so does what they lose.
template <int THREADS, int WIDTH, class T = float, class P = T>
__global__ void __launch_bounds__(THREADS, 3) backward_columns(
    const Vector<WIDTH, T> *x, const Vector<WIDTH, T> *dy, const Vector<WIDTH, P> *gamma,
    const float *mean, const float *mean_lo, const float *rstd, const Means *means,
    Vector<WIDTH, T> *__restrict__ dx, Vector<WIDTH> *__restrict__ partial, float one_over_D,
    long long rows, int D)
{
    const int vectors = D / WIDTH, across = (vectors + THREADS - 1) / THREADS;  // blocks for a row
    const int i = blockIdx.x % across * THREADS + threadIdx.x, first = blockIdx.x / across;
    if (i >= vectors)
        return;
    const Vector<WIDTH> gain = wide(gamma[i]);
    Vector<WIDTH> dgamma = {}, dbeta = {}, lost_dgamma = {}, lost_dbeta = {};
    for (long long n = first; n < rows; n += gridDim.x / across) {
        const Row row = {mean[n], mean_lo[n], rstd[n]};
        const Means of = means[n];
        const long long at = n * vectors + i;
        const Vector<WIDTH> x_hat = row.x_hat(wide(x[at])), d = wide(dy[at]);
        for (int j = 0; j < WIDTH; j++) {
            add(dgamma.at[j], lost_dgamma.at[j], d.at[j] * x_hat.at[j]);
            add(dbeta.at[j], lost_dbeta.at[j], d.at[j]);
        }
        dx[at] = narrow<T>(dx_of(gain, d, x_hat, of, row.rstd));
    }
    partial[(long long)first * 2 * vectors + i] = dgamma;
    partial[((long long)first * 2 + 1) * vectors + i] = dbeta;
}

// Stage 2: add up the rows of partial sums, in float64 and always in the same order, so that two
// runs give the same bits. A block has few columns, so that there are many blocks: 8 floats are the
// 32 bytes that memory moves at a time. Its threads share the rows: lanes with the same column add
// up what they have, then one thread per column what the warps have.
template <int THREADS, int COLUMNS, class T = float>
__global__ void __launch_bounds__(THREADS) column_sums(
    const float *partial, T *__restrict__ gradients, int rows, int columns)
{
    __shared__ double slots[THREADS / 32][COLUMNS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int column = blockIdx.x * COLUMNS + lane % COLUMNS;
    double total = 0;
    if (column < columns)
#pragma unroll 8
        for (int n = threadIdx.x / COLUMNS; n < rows; n += THREADS / COLUMNS)
            total += partial[(long long)n * columns + column];
    total = warp_sum(total, COLUMNS);
    if (lane < COLUMNS)
        slots[warp][lane] = total;
    __syncthreads();
    if (threadIdx.x < COLUMNS && column < columns) {
        for (int w = 1; w < THREADS / 32; w++)
            total += slots[w][lane];
        gradients[column] = T(float(total));
    }
}

// ---- Backward, both stages in one launch --------------------------------------------------------
// The block that finishes last adds up what all blocks have written. Which one that is, is chance;
// but the order of the additions is not. counter must be zero before. For small inputs: the last
// block is alone, and it takes long over more than a few hundred kB.
template <int THREADS, int VECTORS, int WIDTH, int ROWS, int BLOCKS, Sums SUMS = IN_SHARED>
__global__ void __launch_bounds__(THREADS * ROWS, BLOCKS) backward_single(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const float *mean, const float *mean_lo, const float *rstd, Vector<WIDTH> *__restrict__ dx,
    Vector<WIDTH> *partial, float *__restrict__ gradients, int *counter, float one_over_D,
    long long rows, int D)
{
    backward_rows<THREADS, VECTORS, WIDTH, ROWS, SUMS>(
        x, dy, gamma, mean, mean_lo, rstd, dx, partial, one_over_D, rows, D);

    __shared__ bool last;
    __threadfence();  // what this thread wrote is visible to all blocks before ...
    __syncthreads();  // ... and the same holds for the whole block ...
    if (threadIdx.x == 0)
        last = atomicAdd(&counter[0], 1) == gridDim.x - 1;  // ... the block reports that it is done
    __syncthreads();
    if (!last)
        return;
    __threadfence();  // and what the others wrote is read from where they wrote it
    const float *sums = partial->at;
    for (int i = threadIdx.x; i < 2 * D; i += THREADS * ROWS) {
        double total = 0;
        for (int n = 0; n < gridDim.x; n++)
            total += sums[(long long)n * 2 * D + i];
        gradients[i] = total;
    }
}
