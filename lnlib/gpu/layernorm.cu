// LayerNorm in CUDA C++: y = gamma * (x - mean) / sqrt(var + eps) + beta for every row of x, and the
// gradients. All in float32.
//
// If you have never read CUDA. A kernel (marked __global__) is a function that very many threads run
// at the same time. Local variables live in registers: every thread has its own, and no memory is
// faster. 32 threads form a warp; they are its lanes, and can read each other's registers
// (__shfl_xor_sync). Several warps form a block: its threads share a little fast memory (__shared__)
// and can wait for each other (__syncthreads is a barrier: nobody goes on until all have arrived).
// Blocks work independently of each other. threadIdx.x and blockIdx.x tell a thread who it is.
//
// Every pointer below points into global memory: large, far away, and here the only thing that costs
// time. So the aim is to touch it as little as possible: read x once, write y once.
//
// A block works on one row at a time. The row is cut into vectors of WIDTH floats, and thread t owns
// vectors t, t + THREADS, t + 2 * THREADS, ...: neighbours in the block read neighbours in memory.

// WIDTH floats that are loaded or stored by one instruction: 16 bytes if WIDTH is 4. That needs D to
// be a multiple of 4 and arrays that start at a multiple of 16 bytes; otherwise WIDTH is 1.
template <int WIDTH>
struct alignas(4 * WIDTH) Vector {
    float at[WIDTH];
};

// ---- Sums over a block ---------------------------------------------------------------------------

__device__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

// The value of the lane whose number differs from this lane's in the bits of `bits`.
__device__ float other_lane(float value, int bits)
{
    return __shfl_xor_sync(0xffffffff, value, bits);
}

__device__ float2 other_lane(float2 value, int bits)
{
    return make_float2(other_lane(value.x, bits), other_lane(value.y, bits));
}

// Pairs of lanes, then pairs of pairs, ...: after five steps every lane has the sum of all 32.
template <class T>
__device__ T warp_sum(T value)
{
    for (int bits = 1; bits < 32; bits *= 2)
        value = value + other_lane(value, bits);
    return value;
}

// Every thread gets the sum over the whole block, the same bits in all of them.
// Two calls in a row must use different slots: buffer 0 and 1, or float and float2. Then one barrier
// per call is enough: whoever writes into slots again has passed the other call's barrier, where all
// had read these.
template <int THREADS, class T>
__device__ T block_sum(T value, int buffer)
{
    value = warp_sum(value);
    if (THREADS == 32)
        return value;
    __shared__ T slots[2][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0)
        slots[buffer][warp] = value;
    __syncthreads();
    return warp_sum(lane < THREADS / 32 ? slots[buffer][lane] : T());
}

// ---- Forward -------------------------------------------------------------------------------------

// NaN where float32 cannot hold the squares of the row (they overflow, or vanish and eps is tiny):
// better visibly not finite than finite and wrong.
__device__ float reciprocal_std(float var, float eps)
{
    const float square = var + eps;
    return square > 1e-30f && square < 3e38f ? 1.0f / sqrtf(square) : nanf("");
}

// This thread's part of a row (or of gamma, with start 0) into registers. All loads are on their way
// before the first is needed. Vectors past the end of the row are padding, and zero.
template <int THREADS, int VECTORS, int WIDTH>
__device__ void load(
    const Vector<WIDTH> *from, long long start, int vectors, Vector<WIDTH> (&row)[VECTORS])
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = threadIdx.x + v * THREADS;
        row[v] = i < vectors ? from[start + i] : Vector<WIDTH>();
    }
}

// The sum of what this thread holds of the row.
template <int VECTORS, int WIDTH>
__device__ float sum(const Vector<WIDTH> (&row)[VECTORS])
{
    float total = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            total += row[v].at[j];
    return total;
}

template <int VECTORS, int WIDTH>
__device__ float sum_of_squares(const Vector<WIDTH> (&row)[VECTORS])
{
    float total = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            total += row[v].at[j] * row[v].at[j];
    return total;
}

// The padding must stay zero: it is added up too.
template <int THREADS, int VECTORS, int WIDTH>
__device__ void subtract(Vector<WIDTH> (&row)[VECTORS], float mean, int vectors)
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (threadIdx.x + v * THREADS < vectors)
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                row[v].at[j] -= mean;
}

// One block per row. The row is loaded once and stays in registers, so that centring it twice and
// squaring what is left costs no more traffic. (__restrict__ promises that the array overlaps no
// other: loads may then be moved ahead of stores. __launch_bounds__ lets the compiler count on at
// most THREADS threads when it hands out registers.)
template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) forward(
    const Vector<WIDTH> *x, const Vector<WIDTH> *gamma, const Vector<WIDTH> *beta,
    Vector<WIDTH> *__restrict__ y, double *__restrict__ mean, float *__restrict__ rstd,
    float eps, int D)
{
    const int vectors = D / WIDTH;
    const long long start = (long long)blockIdx.x * vectors;  // x can have more than 2**31 entries

    Vector<WIDTH> xc[VECTORS];
    load<THREADS>(x, start, vectors, xc);
    const float rounded_mean = block_sum<THREADS>(sum(xc), 0) / D;
    subtract<THREADS>(xc, rounded_mean, vectors);
    const float rest = block_sum<THREADS>(sum(xc), 1) / D;  // what rounding left of the mean
    subtract<THREADS>(xc, rest, vectors);
    const float var = block_sum<THREADS>(sum_of_squares(xc), 0) / D;
    const float r = reciprocal_std(var, eps);

    Vector<WIDTH> gain[VECTORS], shift[VECTORS];
    load<THREADS>(gamma, 0, vectors, gain);
    load<THREADS>(beta, 0, vectors, shift);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = threadIdx.x + v * THREADS;
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            xc[v].at[j] = gain[v].at[j] * (xc[v].at[j] * r) + shift[v].at[j];
        if (i < vectors)
            y[start + i] = xc[v];
    }
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = (double)rounded_mean + rest;  // float32 alone would lose the rest
        rstd[blockIdx.x] = r;
    }
}

// The same without keeping the row: every step reads x again. For rows of any length, and to measure
// what the registers are worth.
template <int THREADS, int WIDTH>
__global__ void __launch_bounds__(THREADS) forward_looping(
    const Vector<WIDTH> *x, const Vector<WIDTH> *gamma, const Vector<WIDTH> *beta,
    Vector<WIDTH> *__restrict__ y, double *__restrict__ mean, float *__restrict__ rstd,
    float eps, int D)
{
    const int vectors = D / WIDTH;
    const long long start = (long long)blockIdx.x * vectors;

    float total = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const Vector<WIDTH> in = x[start + i];
        for (int j = 0; j < WIDTH; j++)
            total += in.at[j];
    }
    const float rounded_mean = block_sum<THREADS>(total, 0) / D;

    total = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const Vector<WIDTH> in = x[start + i];
        for (int j = 0; j < WIDTH; j++)
            total += in.at[j] - rounded_mean;
    }
    const float rest = block_sum<THREADS>(total, 1) / D;

    total = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const Vector<WIDTH> in = x[start + i];
        for (int j = 0; j < WIDTH; j++) {
            const float xc = in.at[j] - rounded_mean - rest;
            total += xc * xc;
        }
    }
    const float r = reciprocal_std(block_sum<THREADS>(total, 0) / D, eps);

    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const Vector<WIDTH> in = x[start + i], gain = gamma[i], shift = beta[i];
        Vector<WIDTH> out;
        for (int j = 0; j < WIDTH; j++)
            out.at[j] = gain.at[j] * ((in.at[j] - rounded_mean - rest) * r) + shift.at[j];
        y[start + i] = out;
    }
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = (double)rounded_mean + rest;
        rstd[blockIdx.x] = r;
    }
}

// ---- Backward: one row ---------------------------------------------------------------------------
// dgamma = sum over rows of dy * x_hat, dbeta = sum over rows of dy, and with g = gamma * dy
// dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)). If g has a large mean, rounding leaves a part of
// it in g - mean(g), as it does in x - mean(x). So g is centred twice, too.

// x_hat from x and the two saved numbers of its row. The float64 mean is used as two floats, so that
// a GPU with slow float64 is not slowed down.
struct Row {
    float mean, rest, rstd;
    __device__ float x_hat(float x) const { return (x - mean - rest) * rstd; }
};

__device__ Row saved(const double *mean, const float *rstd, long long row)
{
    const double m = mean[row];
    return Row{(float)m, (float)(m - (float)m), rstd[row]};
}

// Load the row's x and dy, once, and turn x into x_hat. Padding becomes zero in both.
template <int THREADS, int VECTORS, int WIDTH>
__device__ void load_row(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, Row row, long long start, int vectors,
    Vector<WIDTH> (&x_hat)[VECTORS], Vector<WIDTH> (&d)[VECTORS])
{
    load<THREADS>(x, start, vectors, x_hat);
    load<THREADS>(dy, start, vectors, d);
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (threadIdx.x + v * THREADS < vectors)
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                x_hat[v].at[j] = row.x_hat(x_hat[v].at[j]);
}

// From x_hat and dy in registers: the mean of g; then what rounding left of it and the mean of
// g * x_hat, in one sum over pairs; then dx.
template <int THREADS, int VECTORS, int WIDTH>
__device__ void write_dx(
    const Vector<WIDTH> *gamma, Vector<WIDTH> *__restrict__ dx, float rstd, long long start, int D,
    const Vector<WIDTH> (&x_hat)[VECTORS], Vector<WIDTH> (&g)[VECTORS])
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = threadIdx.x + v * THREADS;
        const Vector<WIDTH> gain = i < D / WIDTH ? gamma[i] : Vector<WIDTH>();
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            g[v].at[j] *= gain.at[j];
    }
    subtract<THREADS>(g, block_sum<THREADS>(sum(g), 0) / D, D / WIDTH);

    float2 sums = make_float2(0, 0);  // of g and of g * x_hat
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            sums = sums + make_float2(g[v].at[j], g[v].at[j] * x_hat[v].at[j]);
    sums = block_sum<THREADS>(sums, 0);
    const float rest = sums.x / D, mean_gx = sums.y / D;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = threadIdx.x + v * THREADS;
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            g[v].at[j] = rstd * (g[v].at[j] - rest - x_hat[v].at[j] * mean_gx);
        if (i < D / WIDTH)
            dx[start + i] = g[v];
    }
}

// ---- Backward, first try: every block adds its row to dgamma and dbeta ---------------------------
// Blocks get in each other's way, and the order of the additions, hence the rounding, is left to
// chance. dgamma and dbeta must be zero before.
template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) backward_atomic(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const double *mean, const float *rstd, Vector<WIDTH> *__restrict__ dx,
    float *dgamma, float *dbeta, int D)
{
    const long long start = (long long)blockIdx.x * (D / WIDTH);
    const Row row = saved(mean, rstd, blockIdx.x);
    Vector<WIDTH> x_hat[VECTORS], d[VECTORS];
    load_row<THREADS>(x, dy, row, start, D / WIDTH, x_hat, d);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = threadIdx.x + v * THREADS;
        if (i < D / WIDTH)
#pragma unroll
            for (int j = 0; j < WIDTH; j++) {
                atomicAdd(&dgamma[i * WIDTH + j], d[v].at[j] * x_hat[v].at[j]);
                atomicAdd(&dbeta[i * WIDTH + j], d[v].at[j]);
            }
    }
    write_dx<THREADS>(gamma, dx, row.rstd, start, D, x_hat, d);
}

// ---- Backward, two stages ------------------------------------------------------------------------
// Stage 1: few blocks, each with many rows (row, row + gridDim.x, ...). A block adds its rows up on
// the chip and writes one row of partial sums: dgamma's D columns, then dbeta's. Every thread has sums
// of its own, for the columns it owns: no barrier, no atomics. They are kept in shared memory, because
// registers are full at D = 16384.
template <int THREADS, int VECTORS, int WIDTH>
__device__ void backward_rows(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const double *mean, const float *rstd, Vector<WIDTH> *__restrict__ dx,
    Vector<WIDTH> *__restrict__ partial, long long rows, int D)
{
    extern __shared__ float sums[];  // its size, 2 * ENTRIES * THREADS floats, is set at the launch
    const int ENTRIES = VECTORS * WIDTH;
    const int vectors = D / WIDTH;
    for (int k = 0; k < 2 * ENTRIES; k++)
        sums[k * THREADS + threadIdx.x] = 0;

    for (long long n = blockIdx.x; n < rows; n += gridDim.x) {
        const Row row = saved(mean, rstd, n);
        Vector<WIDTH> x_hat[VECTORS], d[VECTORS];
        load_row<THREADS>(x, dy, row, n * vectors, vectors, x_hat, d);
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
#pragma unroll
            for (int j = 0; j < WIDTH; j++) {
                const int k = v * WIDTH + j;
                sums[k * THREADS + threadIdx.x] += d[v].at[j] * x_hat[v].at[j];
                sums[(ENTRIES + k) * THREADS + threadIdx.x] += d[v].at[j];
            }
        write_dx<THREADS>(gamma, dx, row.rstd, n * vectors, D, x_hat, d);
    }

    const long long start = (long long)blockIdx.x * 2 * vectors;
    for (int v = 0; v < VECTORS; v++) {
        const int i = threadIdx.x + v * THREADS;
        if (i < vectors) {
            Vector<WIDTH> dgamma, dbeta;
            for (int j = 0; j < WIDTH; j++) {
                const int k = v * WIDTH + j;
                dgamma.at[j] = sums[k * THREADS + threadIdx.x];
                dbeta.at[j] = sums[(ENTRIES + k) * THREADS + threadIdx.x];
            }
            partial[start + i] = dgamma;
            partial[start + vectors + i] = dbeta;
        }
    }
}

template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) backward(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const double *mean, const float *rstd, Vector<WIDTH> *__restrict__ dx,
    Vector<WIDTH> *__restrict__ partial, long long rows, int D)
{
    backward_rows<THREADS, VECTORS>(x, dy, gamma, mean, rstd, dx, partial, rows, D);
}

// The same without keeping the row, for rows of any length: x is read twice and dy three times, and the
// sums are kept where they end, in partial.
template <int THREADS, int WIDTH>
__global__ void __launch_bounds__(THREADS) backward_looping(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const double *mean, const float *rstd, Vector<WIDTH> *__restrict__ dx,
    Vector<WIDTH> *__restrict__ partial, long long rows, int D)
{
    const int vectors = D / WIDTH;
    const long long dgamma = (long long)blockIdx.x * 2 * vectors, dbeta = dgamma + vectors;
    for (int i = threadIdx.x; i < vectors; i += THREADS)
        partial[dgamma + i] = partial[dbeta + i] = Vector<WIDTH>();

    for (long long n = blockIdx.x; n < rows; n += gridDim.x) {
        const Row row = saved(mean, rstd, n);
        float total = 0;
        for (int i = threadIdx.x; i < vectors; i += THREADS) {
            const Vector<WIDTH> d = dy[n * vectors + i], gain = gamma[i];
            for (int j = 0; j < WIDTH; j++)
                total += gain.at[j] * d.at[j];
        }
        const float rounded_mean = block_sum<THREADS>(total, 0) / D;

        float2 sums = make_float2(0, 0);
        for (int i = threadIdx.x; i < vectors; i += THREADS) {
            const Vector<WIDTH> in = x[n * vectors + i], d = dy[n * vectors + i], gain = gamma[i];
            Vector<WIDTH> to_dgamma = partial[dgamma + i], to_dbeta = partial[dbeta + i];
            for (int j = 0; j < WIDTH; j++) {
                const float x_hat = row.x_hat(in.at[j]);
                const float g = gain.at[j] * d.at[j] - rounded_mean;
                to_dgamma.at[j] += d.at[j] * x_hat;
                to_dbeta.at[j] += d.at[j];
                sums = sums + make_float2(g, g * x_hat);
            }
            partial[dgamma + i] = to_dgamma;
            partial[dbeta + i] = to_dbeta;
        }
        sums = block_sum<THREADS>(sums, 0);
        for (int i = threadIdx.x; i < vectors; i += THREADS) {
            const Vector<WIDTH> in = x[n * vectors + i], d = dy[n * vectors + i], gain = gamma[i];
            Vector<WIDTH> out;
            for (int j = 0; j < WIDTH; j++) {
                const float x_hat = row.x_hat(in.at[j]);
                const float g = gain.at[j] * d.at[j] - rounded_mean;
                out.at[j] = row.rstd * (g - sums.x / D - x_hat * (sums.y / D));
            }
            dx[n * vectors + i] = out;
        }
    }
}

// Stage 2: add up the rows of partial sums, in float64 and always in the same order, so that two runs
// give the same bits. A block has 32 columns, one per lane; its warps share the rows.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) column_sums(
    const float *partial, float *__restrict__ gradients, int rows, int columns)
{
    __shared__ double slots[THREADS / 32][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int column = blockIdx.x * 32 + lane;
    double total = 0;
    if (column < columns)
#pragma unroll 8
        for (int n = warp; n < rows; n += THREADS / 32)
            total += partial[(long long)n * columns + column];
    slots[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < columns) {
        for (int w = 1; w < THREADS / 32; w++)
            total += slots[w][lane];
        gradients[column] = total;
    }
}

// ---- Backward, both stages in one launch ---------------------------------------------------------
// The block that finishes last adds up what all blocks have written. Which one that is, is chance; but
// the order of the additions is not. counter must be zero before.
template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) backward_single(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const double *mean, const float *rstd, Vector<WIDTH> *__restrict__ dx,
    Vector<WIDTH> *partial, float *__restrict__ gradients, int *counter, long long rows, int D)
{
    backward_rows<THREADS, VECTORS>(x, dy, gamma, mean, rstd, dx, partial, rows, D);

    __shared__ bool last;
    __threadfence();  // what this thread wrote is visible to all blocks before ...
    __syncthreads();  // ... and the same holds for the whole block ...
    if (threadIdx.x == 0)
        last = atomicAdd(&counter[0], 1) == gridDim.x - 1;  // ... the block reports that it is done
    __syncthreads();
    if (!last)
        return;
    __threadfence();  // and what the others wrote is read from where they wrote it
    for (int i = threadIdx.x; i < 2 * D / WIDTH; i += THREADS) {
        double total[WIDTH] = {};
        for (int n = 0; n < gridDim.x; n++) {
            const Vector<WIDTH> in = partial[(long long)n * (2 * D / WIDTH) + i];
            for (int j = 0; j < WIDTH; j++)
                total[j] += in.at[j];
        }
        for (int j = 0; j < WIDTH; j++)
            gradients[i * WIDTH + j] = total[j];
    }
}
