// What CUDA's words mean when one CPU core plays the GPU. emulator.py puts this file in front of the
// kernels and a main() behind them; one run of the program is one kernel launch.
//
// Every CUDA thread is a fiber: a function with a stack of its own that can stop in the middle
// (swapcontext) and be resumed later. Blocks run one after the other. The threads of a block run in
// the order asked for, each until it has to wait for others, at a barrier or in a shuffle.
// Pointers to global memory and shared arrays become classes that check and count every access.

#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE  // with the line above, what macOS wants to see before ucontext.h
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define __global__ static
#define __device__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __forceinline__ inline

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float emulated_rsqrtf(float x) { return 1 / sqrtf(x); }  // a GPU's may be off by 2 units more
#define rsqrtf emulated_rsqrtf  // new C libraries have one of that name
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }

struct __half {  // 5 bits of exponent, 10 of mantissa
    unsigned short bits;
    __half() = default;
    __half(float value)
    {
        unsigned u;
        memcpy(&u, &value, 4);
        const unsigned sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
        if (size > 0x7f800000)
            bits = 0x7fff;  // NaN
        else if (size >= 0x477ff000)
            bits = sign | 0x7c00;  // rounds to infinity
        else if (size < 0x38800000)
            bits = sign | (unsigned)rintf(fabsf(value) * 0x1p24f);  // subnormal
        else
            bits = sign | (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;  // to nearest even
    }
    operator float() const
    {
        const unsigned size = bits & 0x7fff, sign = (bits & 0x8000u) << 16;
        unsigned u = sign | (size << 13) + (112u << 23);
        if (size >= 0x7c00)
            u = sign | 0x7f800000 | (size & 0x3ff) << 13;
        float value;
        memcpy(&value, &u, 4);
        return size < 0x400 ? (sign ? -1.0f : 1.0f) * size * 0x1p-24f : value;
    }
};

struct __nv_bfloat16 {  // the upper half of a float32
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float value)
    {
        unsigned u;
        memcpy(&u, &value, 4);
        bits = value != value ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
    }
    operator float() const
    {
        const unsigned u = (unsigned)bits << 16;
        float value;
        memcpy(&value, &u, 4);
        return value;
    }
};
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
static inline float __half2float(__half x) { return x; }
static inline __half __float2half(float x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

[[noreturn]] static void stop(const char *sentence, ...)
{
    va_list values;
    va_start(values, sentence);
    fflush(stdout);
    vfprintf(stderr, sentence, values);
    fputc('\n', stderr);
    _exit(3);
}

// ---- Threads -------------------------------------------------------------------------------------

enum State { READY, AT_BARRIER, IN_SHUFFLE, RETURNED };

struct Thread {
    ucontext_t context;
    State state;
    int line;           // of the source, where it waits
    unsigned mask;      // in a shuffle: the lanes it waits for
    int phase;          // number of shuffles so far, modulo 2
    int warp_epoch;     // number of warp-wide meetings so far
    bool unfenced;      // has stored to global memory since its last __threadfence
    long steps;         // accesses to memory and waits; a thread that never ends is stopped
    char sent[2][16];   // what it gives to the other lanes
};

const int MAX_THREADS = 1024;
const size_t STACK = 64 * 1024;
const long MAX_STEPS = 20000000;
static Thread threads[MAX_THREADS];
static char *stacks;
static ucontext_t scheduler;
static int epoch;        // number of barriers this block has passed
struct Report { int epoch, thread; bool fenced; };
static Report *reports;  // per block: its last atomicAdd to an integer
static void (*kernel)();

static Thread &self() { return threads[threadIdx.x]; }

static void count_steps(int steps)
{
    if ((self().steps += steps) > MAX_STEPS)
        stop("thread %u of block %u has not returned after %ld steps: it seems to run forever",
             threadIdx.x, blockIdx.x, MAX_STEPS);
}

static void wait(State state, int line)
{
    Thread &me = self();
    count_steps(1000);  // waiting takes longer than reading
    me.state = state;
    me.line = line;
    swapcontext(&me.context, &scheduler);
}

static void fiber()
{
    kernel();
    self().state = RETURNED;
    swapcontext(&self().context, &scheduler);
}

static void barrier(int line) { wait(AT_BARRIER, line); }

// All lanes of the mask give a value; each takes the one of lane `from`.
template <class T>
static T exchange(unsigned mask, T value, unsigned from, int line)
{
    static_assert(sizeof(T) <= sizeof(Thread::sent[0]), "value too large for a shuffle");
    Thread &me = self();
    const unsigned lane = threadIdx.x % 32;
    if (!(mask >> lane & 1))
        stop("thread %u, line %d: it is not in the mask of its own shuffle", threadIdx.x, line);
    me.mask = mask;
    memcpy(me.sent[me.phase], &value, sizeof(T));
    wait(IN_SHUFFLE, line);
    if (from > 31)
        from = lane;  // past the end of the warp: a lane gets its own value
    if (!(mask >> from & 1))
        stop("thread %u, line %d: it wants the value of lane %u, which takes no part in the shuffle",
             threadIdx.x, line, from);
    memcpy(&value, threads[threadIdx.x - lane + from].sent[me.phase], sizeof(T));
    me.phase ^= 1;  // nobody overwrites what a slower lane has yet to read
    return value;
}

// Resume the lanes of this warp whose whole mask has arrived.
static bool release_shuffle(int first)
{
    bool released = false;
    for (int t = first; t < first + 32 && t < (int)blockDim.x; t++) {
        if (threads[t].state != IN_SHUFFLE)
            continue;
        const unsigned mask = threads[t].mask;
        bool complete = true;
        for (int lane = 0; lane < 32; lane++)
            if (mask >> lane & 1) {
                const int u = first + lane;
                complete = complete && u < (int)blockDim.x && threads[u].state == IN_SHUFFLE
                           && threads[u].mask == mask && threads[u].line == threads[t].line;
            }
        if (!complete)
            continue;
        for (int lane = 0; lane < 32; lane++)
            if (mask >> lane & 1) {
                threads[first + lane].state = READY;
                threads[first + lane].warp_epoch++;
            }
        released = true;
    }
    return released;
}

static const char *where(const Thread &thread)
{
    static char text[2][64];
    static int which;
    which ^= 1;
    if (thread.state == RETURNED)
        return "has returned";
    snprintf(text[which], sizeof text[which], "waits %s in line %d",
             thread.state == AT_BARRIER ? "at __syncthreads" : "for its warp", thread.line);
    return text[which];
}

// Nobody can go on. Say it of two threads that wait for different things.
[[noreturn]] static void stuck()
{
    int waiting = 0;
    while (threads[waiting].state == RETURNED)
        waiting++;
    for (int t = 0; t < (int)blockDim.x; t++)
        if (threads[t].state != threads[waiting].state || threads[t].line != threads[waiting].line)
            stop("block %u is stuck: thread %d %s, but thread %d %s", blockIdx.x, waiting,
                 where(threads[waiting]), t, where(threads[t]));
    stop("block %u is stuck: thread %d %s, with a mask that its warp cannot fill", blockIdx.x, waiting,
         where(threads[waiting]));
}

static void poison_shared();

static void run_block(const int *order)
{
    const int count = blockDim.x;
    epoch = 0;
    poison_shared();
    for (int t = 0; t < count; t++) {
        memset(&threads[t].state, 0, sizeof(Thread) - offsetof(Thread, state));
        threads[t].context.uc_stack.ss_sp = stacks + t * STACK;
        threads[t].context.uc_stack.ss_size = STACK;
        makecontext(&threads[t].context, fiber, 0);
    }
    for (;;) {
        bool progress = false;
        for (int k = 0; k < count; k++)
            if (threads[order[k]].state == READY) {
                threadIdx.x = order[k];
                swapcontext(&scheduler, &threads[order[k]].context);
                progress = true;
            }
        for (int first = 0; first < count; first += 32)
            progress = release_shuffle(first) || progress;
        if (progress)
            continue;
        int returned = 0, arrived = 0;
        for (int t = 0; t < count; t++) {
            returned += threads[t].state == RETURNED;
            arrived += threads[t].state == AT_BARRIER && threads[t].line == threads[0].line;
        }
        if (returned == count)
            return;
        if (arrived < count)
            stuck();
        for (int t = 0; t < count; t++)
            threads[t].state = READY;
        epoch++;
    }
}

// ---- Memory --------------------------------------------------------------------------------------

// Who touched an element last. Two threads may touch it, one of them writing, only if a barrier (or,
// within a warp, __syncwarp or a shuffle) lies in between.
struct Access { int block, thread, epoch, warp_epoch; };

static Access access_now()
{
    return {(int)blockIdx.x, (int)threadIdx.x, epoch, self().warp_epoch};
}

static bool unordered(const Access &before)
{
    return before.thread >= 0 && before.thread != (int)threadIdx.x && before.epoch == epoch
           && (before.thread / 32 != (int)threadIdx.x / 32 || before.warp_epoch == self().warp_epoch);
}

const int MAX_WARPS = MAX_THREADS / 32;

struct Array {  // what is known about one array in global memory
    const char *name;
    char *data;
    size_t bytes;
    Access *writer;             // per 4 bytes
    long long loaded, stored;   // bytes
    long long loads, stores;    // accesses
    long long last[MAX_WARPS];  // the element each warp has loaded last
};

template <class Owner, class T>
struct Reference {  // array[index]: a load if it is read, a store if it is assigned to
    Owner *owner;
    long long index;
    operator T() const { return owner->load(index); }
    const T &operator=(const T &value) const { owner->store(index, value); return value; }
    T operator=(const Reference &other) const { return *this = (T)other; }
    T operator+=(const T &value) const { return *this = (T)*this + value; }
    T operator-=(const T &value) const { return *this = (T)*this - value; }
    T operator*=(const T &value) const { return *this = (T)*this * value; }
    Reference operator&() const { return *this; }
};

template <class T>
struct Global {
    Array *array;
    long long first = 0;  // of the elements that this pointer points at

    Global operator+(long long more) const { return {array, first + more}; }

    size_t size() const { return array->bytes / sizeof(T); }

    T *at(long long index, const char *verb) const
    {
        count_steps(1);
        if (index < 0 || index >= (long long)size())
            stop("%s[%lld] is out of range: thread %u of block %u wants to %s it, and %s has %zu elements",
                 array->name, index, threadIdx.x, blockIdx.x, verb, array->name, size());
        return (T *)array->data + index;
    }

    T load(long long index) const
    {
        const T value = *at(index, "read");
        // Neighbouring lanes that read the same element cause one access: the hardware broadcasts it.
        long long &last = array->last[threadIdx.x / 32];
        if (last != index) {
            array->loaded += sizeof(T);
            array->loads++;
            last = index;
        }
        if (array->writer)
            for (size_t k = index * sizeof(T) / 4; k < (index + 1) * sizeof(T) / 4; k++)
                check_order(array->writer[k], index, "read");
        return value;
    }

    template <class V>
    void store(long long index, const V &value) const
    {
        *at(index, "write") = value;
        array->stored += sizeof(T);
        array->stores++;
        for (size_t k = index * sizeof(T) / 4; k < (index + 1) * sizeof(T) / 4; k++) {
            check_order(array->writer[k], index, "wrote");
            array->writer[k] = access_now();
        }
        self().unfenced = true;
    }

    void check_order(const Access &writer, long long index, const char *verb) const
    {
        if (writer.thread < 0)
            return;
        if (writer.block == (int)blockIdx.x) {
            if (unordered(writer))
                stop("%s[%lld]: thread %u of block %u %s it, and thread %d wrote it, with no barrier in between",
                     array->name, index, threadIdx.x, blockIdx.x, verb, writer.thread);
            return;
        }
        const Report &report = reports[writer.block];
        if (report.epoch < 0)
            stop("%s[%lld]: thread %u of block %u %s it, and thread %d of block %d wrote it: blocks run in any order",
                 array->name, index, threadIdx.x, blockIdx.x, verb, writer.thread, writer.block);
        if (writer.epoch >= report.epoch && writer.thread != report.thread)
            stop("%s[%lld]: block %u %s it, and thread %d of block %d wrote it with no barrier before that "
                 "block's atomicAdd", array->name, index, blockIdx.x, verb, writer.thread, writer.block);
        if (!report.fenced)
            stop("%s[%lld]: block %u %s it, and thread %d of block %d wrote it with no __threadfence before that "
                 "block's atomicAdd", array->name, index, blockIdx.x, verb, writer.thread, writer.block);
    }

    Reference<const Global, T> operator[](long long index) const { return {this, first + index}; }
};

template <class T>
struct Global<const T> : Global<T> {
    Global(const Global<T> &other) : Global<T>(other) {}
    Global operator+(long long more) const { return Global<T>::operator+(more); }
    const T operator[](long long index) const { return this->load(this->first + index); }  // not to be assigned to
};

template <class T> static T load_streaming(const Global<const T> &from) { return from[0]; }
template <class T> static T load_streaming(const Global<T> &from) { return from[0]; }
template <class T, class V> static void store_streaming(const Global<T> &to, const V &value) { to[0] = value; }

// atomicAdd returns the value before. Adding to an integer is taken as a block's report to the others.
template <class T>
static T atomic_add(const Reference<const Global<T>, T> &where, T value)
{
    Array &array = *where.owner->array;
    T *target = where.owner->at(where.index, "add to");
    const T before = *target;
    *target = before + value;
    array.loaded += sizeof(T);
    array.stored += sizeof(T);
    array.loads++;
    array.stores++;
    return before;
}

static float atomicAdd(const Reference<const Global<float>, float> &where, float value)
{
    return atomic_add<float>(where, value);
}

static int atomicAdd(const Reference<const Global<int>, int> &where, int value)
{
    bool fenced = true;
    for (unsigned t = 0; t < blockDim.x; t++)
        fenced = fenced && !threads[t].unfenced;
    reports[blockIdx.x] = {epoch, (int)threadIdx.x, fenced};
    return atomic_add<int>(where, value);
}

struct SharedMemory {  // what all shared arrays have in common
    const char *name;
    SharedMemory *next;
    virtual void poison() = 0;
};

static SharedMemory *all_shared;
static size_t dynamic_bytes;

static void poison_shared()
{
    for (SharedMemory *array = all_shared; array; array = array->next)
        array->poison();
}

template <class T>
struct SharedArray : SharedMemory {
    T *data;
    size_t size;
    Access *writer, *reader, *other_reader;  // since the last barrier; two readers are enough to tell

    SharedArray(const char *name_, size_t size_)
    {
        name = name_;
        size = size_;
        data = (T *)malloc(size * sizeof(T) + 1);
        writer = (Access *)malloc(3 * size * sizeof(Access) + 1);
        reader = writer + size;
        other_reader = reader + size;
        next = all_shared;
        all_shared = this;
        poison();
    }

    void poison() override
    {
        memset((void *)data, 0xff, size * sizeof(T));  // as a float: NaN
        for (size_t k = 0; k < 3 * size; k++)
            writer[k] = {-1, -1, -1, -1};
    }

    void check(long long index, const char *verb) const
    {
        count_steps(1);
        if (index < 0 || index >= (long long)size)
            stop("%s[%lld] is out of range: thread %u of block %u wants to %s it, and the shared array %s has %zu "
                 "elements", name, index, threadIdx.x, blockIdx.x, verb, name, size);
    }

    T load(long long index) const
    {
        check(index, "read");
        if (unordered(writer[index]))
            stop("%s[%lld]: thread %u reads it, and thread %d wrote it, with no barrier in between", name, index,
                 threadIdx.x, writer[index].thread);
        const bool free = reader[index].epoch != epoch || reader[index].thread == (int)threadIdx.x;
        (free ? reader : other_reader)[index] = access_now();
        return data[index];
    }

    void store(long long index, const T &value) const
    {
        check(index, "write");
        const Access before[] = {writer[index], reader[index], other_reader[index]};
        for (const Access &access : before)
            if (unordered(access))
                stop("%s[%lld]: thread %u writes it, and thread %d %s it, with no barrier in between", name, index,
                     threadIdx.x, access.thread, &access == before ? "wrote" : "read");
        writer[index] = access_now();
        data[index] = value;
    }
};

// __shared__ T name[M][N]; name[N]; and name;
template <class T, int M = 0, int N = 0>
struct Shared : SharedArray<T> {
    struct Line {
        const Shared *owner;
        long long first;
        Reference<const SharedArray<T>, T> operator[](long long k) const
        {
            if (k < 0 || k >= N)
                stop("%s[%lld][%lld] is out of range: thread %u of block %u, and the second index ends at %d",
                     owner->name, first / N, k, threadIdx.x, blockIdx.x, N - 1);
            return {owner, first + k};
        }
    };
    Shared(const char *name) : SharedArray<T>(name, M * N) {}
    Line operator[](long long k) const { return {this, k * N}; }
};

template <class T, int N>
struct Shared<T, N, 0> : SharedArray<T> {
    Shared(const char *name) : SharedArray<T>(name, N) {}
    Reference<const SharedArray<T>, T> operator[](long long k) const { return {this, k}; }
};

template <class T>
struct Shared<T, 0, 0> : SharedArray<T> {
    Shared(const char *name) : SharedArray<T>(name, 1) {}
    operator T() const { return this->load(0); }
    const T &operator=(const T &value) const { this->store(0, value); return value; }
};

template <class T>
struct DynamicShared : SharedArray<T> {
    DynamicShared(const char *name) : SharedArray<T>(name, dynamic_bytes / sizeof(T)) {}
    Reference<const SharedArray<T>, T> operator[](long long k) const { return {this, k}; }
};

// ---- One launch ----------------------------------------------------------------------------------

const int MAX_ARGUMENTS = 32;
static Array arrays[MAX_ARGUMENTS];
static const char *numbers[MAX_ARGUMENTS];

template <class T> struct Plain { typedef T type; };
template <class T> struct Plain<const T> { typedef T type; };

struct Argument {  // becomes whatever type the kernel's parameter has
    int k;
    template <class T> operator Global<T>() const
    {
        if (!arrays[k].name)
            stop("argument %d must be an array", k);
        if (arrays[k].bytes % sizeof(T))
            stop("%s has %zu bytes, which is not a whole number of elements of %zu bytes", arrays[k].name,
                 arrays[k].bytes, sizeof(T));
        return Global<T>{Global<typename Plain<T>::type>{&arrays[k]}};
    }
    operator float() const { return strtof(numbers[k], nullptr); }
    operator int() const { return atoi(numbers[k]); }
    operator long long() const { return atoll(numbers[k]); }
};

static void shuffle(int *order, int count, const char *how)
{
    unsigned long long state = strtoull(how, nullptr, 10) * 2654435761u + count;
    for (int k = 0; k < count; k++)
        order[k] = *how == 'r' ? count - 1 - k : k;  // "reverse"
    if (*how >= '0' && *how <= '9')
        for (int k = count - 1; k > 0; k--) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            const int other = (state >> 33) % (k + 1), kept = order[k];
            order[k] = order[other];
            order[other] = kept;
        }
}

// program FILE GRID THREADS SHARED ORDER ARGUMENT...   An argument is name:first byte:bytes, an array
// in the file, or a number. The file is changed in place; the counts go to stdout.
static int launch(int count, char **words, void (*kernel_)())
{
    kernel = kernel_;
    gridDim.x = atoi(words[2]);
    blockDim.x = atoi(words[3]);
    dynamic_bytes = atoll(words[4]);
    if (blockDim.x < 1 || blockDim.x > MAX_THREADS)
        stop("a block has 1 to %d threads, not %u", MAX_THREADS, blockDim.x);
    const int file = open(words[1], O_RDWR);
    const size_t bytes = lseek(file, 0, SEEK_END);
    char *data = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    stacks = (char *)mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (data == MAP_FAILED || stacks == MAP_FAILED)
        stop("the emulator got no memory");
    for (int k = 0; k + 6 < count; k++) {
        char *colon = strchr(words[k + 6], ':');
        numbers[k] = words[k + 6];
        if (!colon)
            continue;
        Array &array = arrays[k];
        size_t first = 0;
        sscanf(colon, ":%zu:%zu", &first, &array.bytes);
        *colon = 0;
        array.name = words[k + 6];
        array.data = data + first;
        array.writer = (Access *)malloc((array.bytes / 4 + 1) * sizeof(Access));
        memset((void *)array.writer, 0xff, (array.bytes / 4 + 1) * sizeof(Access));
    }
    for (Thread &thread : threads)
        getcontext(&thread.context);
    reports = (Report *)malloc(gridDim.x * sizeof(Report));
    memset((void *)reports, 0xff, gridDim.x * sizeof(Report));
    int *blocks = (int *)malloc(gridDim.x * sizeof(int)), order[MAX_THREADS];
    shuffle(blocks, gridDim.x, words[5]);
    for (int b = 0; b < (int)gridDim.x; b++) {
        blockIdx.x = blocks[b];
        for (Array &array : arrays)
            memset(array.last, 0xff, sizeof array.last);
        shuffle(order, blockDim.x, words[5]);
        run_block(order);
    }
    for (const Array &array : arrays)
        if (array.name)
            printf("%s %lld %lld %lld %lld\n", array.name, array.loaded, array.stored, array.loads, array.stores);
    return 0;
}

}  // namespace emulated

#define __syncthreads() emulated::barrier(__LINE__)
#define __syncwarp() ((void)emulated::exchange(0xffffffffu, 0, threadIdx.x % 32, __LINE__))
#define __threadfence() ((void)(emulated::self().unfenced = false))
#define __shfl_sync(mask, value, lane) emulated::exchange(mask, value, (lane) % 32, __LINE__)
#define __shfl_xor_sync(mask, value, bits) emulated::exchange(mask, value, threadIdx.x % 32 ^ (bits), __LINE__)
#define __shfl_down_sync(mask, value, delta) emulated::exchange(mask, value, threadIdx.x % 32 + (delta), __LINE__)
#define __ldg emulated::load_streaming
#define __ldcs emulated::load_streaming
#define __stcs emulated::store_streaming
using emulated::atomicAdd;
