// The machine behind emulator.h: threads, the rules of memory, and a count of what is moved. It is
// compiled once and linked to each kernel; one run of the program is one kernel launch.
//
// Every CUDA thread is a fiber: a function with a stack of its own (makecontext) that can stop in the
// middle and be resumed later (setjmp, longjmp: swapcontext would call the system each time). Blocks
// run one after the other. The threads of a block run in the order asked for, each until it has to
// wait for others, at a barrier or in a shuffle.
// Arrays lie in a range of addresses of their own, far apart; what a kernel reads and writes there is
// checked, and everything else is its threads' own.

#undef _FORTIFY_SOURCE  // its longjmp refuses to go to another stack
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE  // with the line above, what macOS wants to see before ucontext.h
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

typedef unsigned long long u64;
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
uint3 threadIdx, blockIdx;
dim3 blockDim = {1, 1, 1}, gridDim = {1, 1, 1};
#ifdef __linux__
extern "C" char __executable_start;
static const char *const PROGRAM = &__executable_start;
#else
static const char *const PROGRAM = nullptr;
#endif
#define CALLER ((unsigned)((char *)__builtin_return_address(0) - PROGRAM))

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

enum State { READY, AT_BARRIER, IN_WARP, RETURNED };

struct Thread {
    ucontext_t context;  // where it starts, and where it goes on
    jmp_buf here;
    State state;
    const char *file;  // of the source, and the line, where it waits
    int line;
    int number;        // of the barrier where it waits, in the text; of a shuffle its kind; else 0
    unsigned mask;     // for its warp: the lanes it waits for
    unsigned met;      // ... and those that came
    bool orders;       // that wait is a __syncwarp
    int phase;         // number of shuffles so far, modulo 2
    int warp_epoch;    // number of __syncwarp so far
    int meetings;      // ... and of all that it waited for its warp
    int fence_epoch;
    unsigned fence;    // when its last __threadfence was
    long steps;        // accesses to memory and waits; a thread that never ends is stopped
    char sent[2][8];   // what it gives to the other lanes
};

const int MAX_THREADS = 1024;
const size_t STACK = 256 * 1024;
const long MAX_STEPS = 20000000;
static Thread threads[MAX_THREADS];
static char *stacks;
static jmp_buf scheduler;
static int epoch;          // number of barriers this block has passed
static unsigned now;       // counts fences and atomics
static unsigned *settled;  // of each thread: its last __threadfence before the last barrier
static int votes[2];       // of __syncthreads_count
static void (*kernel)();

static Thread &self() { return threads[threadIdx.x]; }

static const char *who()
{
    static char text[50];
    snprintf(text, sizeof text, "thread %u of block %u", threadIdx.x, blockIdx.x);
    return text;
}

static void count_steps(int steps)
{
    if ((self().steps += steps) > MAX_STEPS)
        stop("%s has not returned after %ld steps: it seems to run forever", who(), MAX_STEPS);
}

static void wait(State state, const char *file, int line, int number = 0)
{
    Thread &me = self();
    count_steps(1000);  // waiting takes longer than reading
    me.state = state;
    me.file = file;
    me.line = line;
    me.number = number;
    if (!_setjmp(me.here))
        _longjmp(scheduler, 1);
}

static void fiber()
{
    for (;;) {  // once a block
        kernel();
        self().state = RETURNED;
        if (!_setjmp(self().here))
            _longjmp(scheduler, 1);
    }
}

// Let a thread go on until it waits or returns.
static void resume(Thread &thread)
{
    if (_setjmp(scheduler))
        return;
    if (thread.context.uc_stack.ss_sp)  // it has begun, in this block or in one before
        _longjmp(thread.here, 1);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = stacks + (&thread - threads) * STACK;
    thread.context.uc_stack.ss_size = STACK;
    makecontext(&thread.context, fiber, 0);
    setcontext(&thread.context);
}

namespace emulated
{
void barrier(const char *file, int line, int number) { wait(AT_BARRIER, file, line, number); }
}

int __syncthreads_count(int predicate, const char *file, int line)
{
    const int phase = epoch % 2;
    votes[phase] += predicate != 0;
    wait(AT_BARRIER, file, line);
    return votes[phase];
}

static void meet_warp(unsigned mask, bool orders, const char *file, int line, int kind = 0)
{
    Thread &me = self();
    if (!(mask >> threadIdx.x % 32 & 1))
        stop("thread %u, line %d: it is not in the mask of its own shuffle", threadIdx.x, line);
    me.mask = mask;
    me.orders = orders;
    wait(IN_WARP, file, line, kind);
}

void __syncwarp(unsigned mask, const char *file, int line) { meet_warp(mask, true, file, line); }

namespace emulated {

// All lanes of the mask give a value; each takes one.
void shuffle(
    char kind, unsigned mask, void *value, size_t bytes, int which, int width, const char *file, int line)
{
    const int lane = threadIdx.x % 32;
    if (width < 1 || width > 32 || (width & (width - 1)))
        stop("line %d: the width of a shuffle is 1, 2, 4, 8, 16 or 32, not %d", line, width);
    const int first = lane & -width;
    int from = kind == '^' ? lane ^ which : kind == '+' ? lane + which : kind == '-' ? lane - which
             : first + (which & (width - 1));
    if (from >= first + width || (kind == '-' && from < first))
        from = lane;  // there is no such lane: it gets its own value
    Thread &me = self();
    const int phase = me.phase;
    me.phase ^= 1;  // nobody overwrites what a slower lane has yet to read
    memcpy(me.sent[phase], value, bytes);
    meet_warp(mask, false, file, line, kind);
    if (!(me.met >> from & 1))
        stop("thread %u, line %d: it wants the value of lane %d, which takes no part in the shuffle",
             threadIdx.x, line, from);
    memcpy(value, threads[threadIdx.x - lane + from].sent[phase], bytes);
}

}  // namespace emulated

unsigned __ballot_sync(unsigned mask, int predicate, const char *file, int line)
{
    unsigned ballot = 0;
    char vote = predicate != 0;
    Thread &me = self();
    const int phase = me.phase;
    me.phase ^= 1;
    me.sent[phase][0] = vote;
    meet_warp(mask, false, file, line);
    const unsigned first = threadIdx.x / 32 * 32;
    for (int lane = 0; lane < 32; lane++)
        if (me.met >> lane & 1)
            ballot |= (unsigned)threads[first + lane].sent[phase][0] << lane;
    return ballot;
}

// The lanes that come to the same place, while all others wait elsewhere or have returned.
unsigned __activemask(const char *file, int line)
{
    self().mask = self().orders = 0;
    wait(IN_WARP, file, line);
    return self().met;
}

static bool same_place(const Thread &a, const Thread &b)
{
    return a.line == b.line && a.number == b.number && (a.file == b.file || !strcmp(a.file, b.file));
}

// A __syncwarp may stand in several places, a shuffle not.
static bool same_meeting(const Thread &a, const Thread &b)
{
    return (a.orders && b.orders) || same_place(a, b);
}

// Resume the lanes of this warp whose whole mask has arrived. Threads that have returned, or never
// were, are not waited for.
static bool release_warp(int first)
{
    bool released = false;
    const int end = first + 32 < (int)blockDim.x ? first + 32 : blockDim.x;
    for (int t = first; t < end; t++) {
        if (threads[t].state != IN_WARP)
            continue;
        const unsigned mask = threads[t].mask;
        bool complete = true;
        for (int u = first; u < end; u++)
            if (mask >> (u - first) & 1 && threads[u].state != RETURNED)
                complete = complete && threads[u].state == IN_WARP && threads[u].mask == mask
                           && same_meeting(threads[u], threads[t]);
        if (!complete)
            continue;
        unsigned met = 0;
        for (int u = first; u < end; u++)
            if (mask ? mask >> (u - first) & 1 && threads[u].state != RETURNED
                     : threads[u].state == IN_WARP && !threads[u].mask && same_place(threads[u], threads[t]))
                met |= 1u << (u - first);
        for (int u = first; u < end; u++)
            if (met >> (u - first) & 1) {
                threads[u].state = READY;
                threads[u].met = met;
                threads[u].warp_epoch += threads[u].orders;
                threads[u].meetings++;
            }
        released = true;
    }
    return released;
}

static const char *where(const Thread &thread)
{
    static char text[2][300];
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
    for (int round = 0; round < 2; round++)  // rather one that waits than one that has returned
        for (int t = 0; t < (int)blockDim.x; t++)
            if (threads[t].state == RETURNED ? round == 1
                                             : threads[t].state != threads[waiting].state
                                                   || !same_place(threads[t], threads[waiting]))
                stop("block %u is stuck: thread %d %s, but thread %d %s", blockIdx.x, waiting,
                     where(threads[waiting]), t, where(threads[t]));
    stop("block %u is stuck: thread %d %s, with a mask that its warp cannot fill", blockIdx.x, waiting,
         where(threads[waiting]));
}

static void poison_shared();
static void settle();

static void run_block(const int *order)
{
    const int count = blockDim.x;
    epoch = votes[0] = votes[1] = 0;
    poison_shared();
    for (int t = 0; t < count; t++)
        memset((char *)&threads[t] + offsetof(Thread, state), 0, sizeof(Thread) - offsetof(Thread, state));
    settle();
    for (;;) {
        bool progress = false;
        for (int k = 0; k < count; k++)
            if (threads[order[k]].state == READY) {
                threadIdx.x = order[k];
                resume(threads[order[k]]);
                progress = true;
            }
        for (int first = 0; first < count; first += 32)
            progress = release_warp(first) || progress;
        if (progress)
            continue;
        int returned = 0, arrived = 0;
        const Thread *first = nullptr;
        for (int t = 0; t < count; t++) {
            returned += threads[t].state == RETURNED;
            if (threads[t].state == AT_BARRIER) {
                first = first ? first : &threads[t];
                arrived += same_place(threads[t], *first);
            }
        }
        if (returned == count)
            return;
        if (arrived + returned < count)
            stuck();
        for (int t = 0; t < count; t++)
            if (threads[t].state == AT_BARRIER)
                threads[t].state = READY;
        settle();
        votes[++epoch % 2] = 0;
    }
}

// ---- Memory --------------------------------------------------------------------------------------

// Who touched a few bytes last. Two threads of a block may touch them, one of them writing, only if a
// barrier (or, within a warp, a __syncwarp) lies in between.
struct Access {
    unsigned block, epoch, warp_epoch, time, place;  // block: 1 is the first, 0 is nobody
    unsigned short thread;
    bool atomic;
};

struct Cell {
    Access writer, reader, other_reader, foreign_reader;  // two readers of a block, one of another block
    unsigned constant;                                    // where __ldg has read it
};

struct Array {
    const char *name;
    char *data;
    size_t begin, bytes;  // begin: bytes before the first that is there
    size_t element, row, cell;  // cell: bytes that an Access is kept for
    Cell *cells;
    void **site;                              // of shared memory: where the kernel declares it
    long long loaded, stored, loads, stores;  // bytes; elements
    long long requests, sectors, conflicts;
};

// What a thread tells other blocks by an atomic on an integer in global memory. An access that comes
// before it is seen by who comes to the same integer later, if both sides have fences.
struct Report {
    const void *counter;
    unsigned thread;
    int epoch, warp_epoch, meetings, fence_epoch;
    unsigned fence, time, *settled;
};
struct Reports { size_t first, end; };  // of a block

const int MAX_ARRAYS = 64;
static size_t slot = (size_t)1 << 36;  // addresses for each array, which lies in the middle
static char *space;
static Array arrays[MAX_ARRAYS];       // from the front those of global memory, from the back shared ones
static int shared_arrays;
static unsigned dynamic_bytes, static_bytes;
const unsigned MAX_STATIC = 48 * 1024;
static unsigned max_shared;  // of a block
static Report *reports;
static Reports *reports_of;
static size_t report_count, report_room;
static bool launched, listened, constant;  // constant: the next access is a __ldg
static Array globals;                          // __device__ variables: all around this one
const size_t GLOBALS = (size_t)1 << 24;  // bytes

static char *middle(const Array &array) { return space + (&array - arrays) * slot + slot / 2; }

static void reserve_space()
{
    while (!space) {
        void *found = mmap(nullptr, MAX_ARRAYS * slot, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
        if (found != MAP_FAILED)
            space = (char *)found;
        else if ((slot /= 2) < 1 << 24)
            stop("the emulator got no memory");
    }
}

static void *reserve(size_t bytes)  // zeros; memory is taken where it is touched
{
    void *found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED)
        stop("the emulator got no memory");
    return found;
}

static void keep_accesses(Array &a) { a.cells = (Cell *)reserve((a.bytes / a.cell + 1) * sizeof(Cell)); }

// At a barrier. Reports that were made since the last one keep the numbers as they were.
static void settle()
{
    static size_t reported = -1;
    if (reported != report_count)
        settled = (unsigned *)malloc(MAX_THREADS * sizeof(unsigned));
    reported = report_count;
    for (unsigned t = 0; t < blockDim.x; t++)
        settled[t] = threads[t].fence;
}

static Access access_now(unsigned place, bool atomic)
{
    const unsigned warp_epoch = self().warp_epoch;
    return {blockIdx.x + 1, (unsigned)epoch, warp_epoch, now, place, (unsigned short)threadIdx.x, atomic};
}

static bool unordered(const Access &before)
{
    return before.block == blockIdx.x + 1 && before.thread != threadIdx.x && before.epoch == (unsigned)epoch
           && (before.thread / 32 != threadIdx.x / 32 || before.warp_epoch == (unsigned)self().warp_epoch);
}

static const char *element(const Array &array, long long offset)
{
    static char text[200];
    const long long size = array.element, row = array.row, k = offset / size;
    if ((array.bytes <= array.element && array.site) || &array == &globals)
        return array.name;
    if (row && k >= 0)
        snprintf(text, sizeof text, "%s[%lld][%lld]", array.name, k / row, k % row);
    else
        snprintf(text, sizeof text, "%s[%lld]", array.name, offset < 0 ? (offset + 1) / size - 1 : k);
    return text;
}

// What is missing for an access in another block to come before what this thread does now. Each step
// is one further: ORDERED is the last.
enum Missing { ANY_REPORT, BARRIER_THERE, FENCE_THERE, FENCE_HERE, ORDERED };

// What a report of that block lacks; at best, only this block's fence is missing.
static Missing missing_in(const Report &by, const Access &before)
{
    const bool warp = by.thread / 32 == before.thread / 32u && by.warp_epoch > (int)before.warp_epoch;
    const bool near = by.thread == before.thread || warp;
    if (by.time <= before.time || !(near || by.epoch > (int)before.epoch))
        return BARRIER_THERE;
    const bool fence = by.fence > before.time && (near || by.fence_epoch > (int)before.epoch);
    return fence || by.settled[before.thread] > before.time || before.atomic ? FENCE_HERE : FENCE_THERE;
}

// What is missing after the best pair of a report of that block and a later atomic of this block on
// the same integer.
static Missing missing_between(const Access &before)
{
    const Reports theirs = reports_of[before.block - 1];
    Missing best = ANY_REPORT;
    for (size_t h = report_count; h-- > reports_of[blockIdx.x].first && best < ORDERED;) {
        const Report &mine = reports[h];
        const bool warp = mine.thread / 32 == threadIdx.x / 32 && self().meetings > mine.meetings;
        if (mine.thread != threadIdx.x && epoch <= mine.epoch && !warp)
            continue;
        const bool fence = self().fence > mine.time || settled[mine.thread] > mine.time;
        for (size_t r = theirs.end; r-- > theirs.first && best < ORDERED;)
            if (reports[r].counter == mine.counter && reports[r].time < mine.time) {
                Missing one = missing_in(reports[r], before);
                one = one == FENCE_HERE && fence ? ORDERED : one;
                best = one > best ? one : best;
            }
    }
    return best;
}

// What happened before is in another block. Has that block said so, and has this one listened?
static void check_blocks(const Array &array, long long offset, const Access &before, const char *did,
                         const char *verb, unsigned place)
{
    static const char *const words[] = {
        ": blocks run in any order", " with no barrier before that block's atomicAdd",
        " with no __threadfence before that block's atomicAdd",
        ", with no __threadfence between this block's atomicAdd and here"};
    const Missing missing = missing_between(before);
    if (missing != ORDERED)
        stop("%s: %s %s it in line @%x, and thread %u of block %u %s it in line @%x%s", element(array, offset),
             who(), verb, place, before.thread, before.block - 1, did, before.place, words[missing]);
    listened = true;
}

static void check_order(const Array &array, long long offset, const Access &before, const char *did,
                        const char *verb, unsigned place)
{
    if (unordered(before) && !(reports_of[blockIdx.x].end && missing_between(before) == ORDERED))
        stop("%s: thread %u %s it in line @%x, and thread %u %s it in line @%x, with no barrier in between, "
             "in block %u", element(array, offset), threadIdx.x, verb, place, before.thread, did, before.place,
             blockIdx.x);
    if (before.block && before.block != blockIdx.x + 1 && !array.site)
        check_blocks(array, offset, before, did, verb, place);
}

static void log_request(Array &array, size_t offset, size_t bytes, bool write, unsigned place);

enum Kind { READ, WRITE, ATOMIC };

static void check_access(const void *address, size_t bytes, Kind kind, unsigned place)
{
    const size_t from = (const char *)address - space, around = (const char *)address - globals.data;
    const bool global = from >= MAX_ARRAYS * slot;
    const bool on_stack = (size_t)((const char *)address - stacks) < MAX_THREADS * STACK;
    if (!launched || (global && around >= GLOBALS) || on_stack)
        return (void)(constant = false);  // the thread's own
    count_steps(1);
    Array &array = global ? globals : arrays[from / slot];
    const char *verb = kind == READ ? "read" : kind == WRITE ? "write" : "add to";
    if (!array.data)
        stop("%s wants to %s what no array holds, in line @%x", who(), verb, place);
    const long long offset = (const char *)address - array.data;
    if (offset < (long long)array.begin || offset + bytes > array.begin + array.bytes)
        stop("%s is out of range: %s wants to %s it in line @%x, and %s%s has %zu elements",
             element(array, offset), who(), verb, place, array.site ? "the shared array " : "", array.name,
             (array.begin + array.bytes) / array.element);
    if ((bytes == 8 || bytes == 16) && offset % bytes)
        stop("%s: %s wants to %s %zu bytes in line @%x at an address that is not a multiple of %zu",
             element(array, offset), who(), verb, bytes, place, bytes);
    log_request(array, offset, bytes, kind != READ, place);
    if (kind == ATOMIC)
        log_request(array, offset, bytes, false, place);
    verb = kind == READ ? "reads" : kind == WRITE ? "writes" : "adds to";
    const size_t start = offset - array.begin;
    for (size_t k = start / array.cell; k <= (start + bytes - 1) / array.cell; k++) {
        Cell &cell = array.cells[k];
        Access &writer = cell.writer, &reader = cell.reader;
        const bool here = reader.block == blockIdx.x + 1, own = here && reader.thread == threadIdx.x;
        if (constant ? writer.block : kind != READ && cell.constant && !own)
            stop("%s: %s %s in line @%x, and %s in line @%x: __ldg is for what no thread of the kernel writes",
                 element(array, offset), who(), constant ? "reads it by __ldg" : "writes it", place,
                 constant ? "a thread wrote it" : "__ldg reads it", constant ? writer.place : cell.constant);
        if (!(kind == ATOMIC && writer.atomic))
            check_order(array, offset, writer, writer.atomic ? "added to" : "wrote", verb, place);
        if (kind == READ) {
            if (!here)
                cell.foreign_reader = reader;
            const bool another = here && !own && reader.epoch == (unsigned)epoch;
            (another ? cell.other_reader : reader) = access_now(place, false);
            cell.constant = constant ? place : cell.constant;
            continue;
        }
        for (const Access *one = &reader; one <= &cell.foreign_reader; one++)
            check_order(array, offset, *one, "read", verb, place);
        writer = access_now(place, kind == ATOMIC);
    }
    constant = false;
}

// A shared array is made when a thread first comes to its declaration.
static void make(Array &array)
{
    if (!array.bytes)
        array.bytes = dynamic_bytes;
    else if ((static_bytes += array.bytes) > MAX_STATIC)
        stop("the shared arrays of a block have %u bytes: more than %u must be asked for at the launch",
             static_bytes, MAX_STATIC);
    const size_t pages = (array.bytes / 65536 + 1) * 65536;
    if (mprotect(array.data, pages, PROT_READ | PROT_WRITE))
        stop("the emulator got no memory");
    memset(array.data, 0xff, array.bytes);  // as a float: NaN
    keep_accesses(array);
}

static void poison_shared()
{
    for (int k = MAX_ARRAYS - shared_arrays; k < MAX_ARRAYS; k++)
        memset(arrays[k].data, 0xff, arrays[k].bytes);
}

namespace emulated {

// bytes is 0 for the array whose size the launch sets: there is one, under whatever names.
void *shared(void **site, const char *name, size_t bytes, size_t element_, size_t row)
{
    static void *dynamic;
    if (!bytes && dynamic)
        return dynamic;
    if (*site)
        return *site;
    reserve_space();
    if (++shared_arrays > MAX_ARRAYS / 2)
        stop("the emulator has room for %d shared arrays", MAX_ARRAYS / 2);
    Array &array = arrays[MAX_ARRAYS - shared_arrays];
    array.name = name;
    array.site = site;
    array.data = middle(array);
    array.bytes = bytes;
    array.element = element_;
    array.row = row;
    array.cell = element_ % 2 ? 1 : 2;
    if (launched)  // it has not if the declaration stands outside of functions
        make(array);
    if (!bytes)
        dynamic = array.data;
    return *site = array.data;
}

}  // namespace emulated

void __threadfence()
{
    self().fence = ++now;
    self().fence_epoch = epoch;
}

// An atomic on an integer in global memory is taken as a block's report to the others.
static void report(const void *where)
{
    const size_t from = (const char *)where - space;
    if (from >= MAX_ARRAYS / 2 * slot && from < MAX_ARRAYS * slot)
        return;
    if (report_count == report_room) {
        report_room = 2 * report_room + 4096;
        reports = (Report *)realloc(reports, report_room * sizeof(Report));
    }
    const Thread &me = self();
    reports[report_count++] = {where, threadIdx.x, epoch, me.warp_epoch, me.meetings, me.fence_epoch,
                               me.fence, ++now, settled};
    reports_of[blockIdx.x].end = report_count;
}

#define ATOMIC_FUNCTION(T, name, parameters, after, tells) \
    T name parameters \
    { \
        check_access(where, sizeof(T), ATOMIC, CALLER); \
        if (tells) \
            report(where); \
        const T before = *where; \
        *where = after; \
        return before; \
    }
#define VALUE(T) (T *where, T value)
#define ATOMICS(T) \
    ATOMIC_FUNCTION(T, atomicAdd, VALUE(T), before + value, true) \
    ATOMIC_FUNCTION(T, atomicSub, VALUE(T), before - value, true) \
    ATOMIC_FUNCTION(T, atomicMax, VALUE(T), before > value ? before : value, true) \
    ATOMIC_FUNCTION(T, atomicMin, VALUE(T), before < value ? before : value, true) \
    ATOMIC_FUNCTION(T, atomicAnd, VALUE(T), before & value, true) \
    ATOMIC_FUNCTION(T, atomicOr, VALUE(T), before | value, true) \
    ATOMIC_FUNCTION(T, atomicXor, VALUE(T), before ^ value, true) \
    ATOMIC_FUNCTION(T, atomicExch, VALUE(T), value, true) \
    ATOMIC_FUNCTION(T, atomicCAS, (T *where, T expected, T value), before == expected ? value : before, true)
ATOMICS(int) ATOMICS(unsigned) ATOMICS(u64)
ATOMIC_FUNCTION(float, atomicAdd, VALUE(float), before + value, false)
ATOMIC_FUNCTION(double, atomicAdd, VALUE(double), before + value, false)
ATOMIC_FUNCTION(float, atomicExch, VALUE(float), value, false)
ATOMIC_FUNCTION(unsigned, atomicInc, (unsigned *where, unsigned limit), before >= limit ? 0 : before + 1, true)

namespace emulated {

void constant_load() { constant = true; }

// At the beginning of a kernel with __launch_bounds__, and of a function without __device__.
void launch_bounds(unsigned most, ...)
{
    if (blockDim.x > most)
        stop("a block is launched with %u threads, and the kernel's __launch_bounds__ in line @%x allows %u",
             blockDim.x, CALLER, most);
}

void host_function()
{
    stop("%s calls the function in line @%x, which has no __device__ in front", who(), CALLER);
}

}  // namespace emulated

// ---- What the compiler calls ---------------------------------------------------------------------

extern "C" {

#define HOOKS(bytes) \
    void __tsan_read##bytes(void *p) { check_access(p, bytes, READ, CALLER); } \
    void __tsan_write##bytes(void *p) { check_access(p, bytes, WRITE, CALLER); } \
    void __tsan_unaligned_read##bytes(void *p) { check_access(p, bytes, READ, CALLER); } \
    void __tsan_unaligned_write##bytes(void *p) { check_access(p, bytes, WRITE, CALLER); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)

static void range(const void *p, size_t bytes, Kind kind, unsigned place)
{
    for (size_t done = 0; done < bytes; done += 16)  // the longest that one instruction moves
        check_access((const char *)p + done, bytes - done < 16 ? bytes - done : 16, kind, place);
}

void __tsan_read_range(void *p, size_t bytes) { range(p, bytes, READ, CALLER); }
void __tsan_write_range(void *p, size_t bytes) { range(p, bytes, WRITE, CALLER); }

#define COPY(name) \
    void *__tsan_##name(void *to, const void *from, size_t bytes) \
    { \
        range(from, bytes, READ, CALLER); \
        range(to, bytes, WRITE, CALLER); \
        return name(to, from, bytes); \
    }
COPY(memcpy) COPY(memmove)

void *__tsan_memset(void *to, int value, size_t bytes)
{
    range(to, bytes, WRITE, CALLER);
    return memset(to, value, bytes);
}

void __tsan_init() {} void __tsan_func_entry(void *) {} void __tsan_func_exit() {}

struct Place { const char *file; unsigned line, column; };  // as -fsanitize=bounds,alignment,null has it
struct Type { unsigned short kind, info; char name[1]; };
struct OutOfBounds { Place place; const Type *array, *index; };
struct Mismatch { Place place; const Type *type; unsigned char log_alignment, kind; };

void __ubsan_handle_out_of_bounds(OutOfBounds *data, size_t index)
{
    stop("index %lld is out of range for an array of type %s: %s, line %u",
         data->index->info >> 1 < 6 ? (long long)(int)index : (long long)index, data->array->name, who(),
         data->place.line);
}

void __ubsan_handle_type_mismatch_v1(Mismatch *data, size_t pointer)
{
    if (!pointer)
        stop("%s uses a null pointer in line %u", who(), data->place.line);
    stop("%s uses an address that is not a multiple of %d as %s, in line %u", who(), 1 << data->log_alignment,
         data->type->name, data->place.line);
}

int emulated_printf(const char *sentence, ...)
{
    va_list values;
    va_start(values, sentence);
    return vprintf(sentence, values);
}

}  // extern "C"

// ---- A profile -----------------------------------------------------------------------------------

// A request is what the lanes of a warp ask for with one instruction: the same place in the program,
// for the same time. Their accesses are collected while a block runs, and sorted when it is done.
struct Entry {
    u64 request;  // place, warp, how often the thread has been there, and for shared memory a part
    u64 address;  // and the number of bytes, the last byte, and whether it is a store
    bool operator<(const Entry &other) const
    {
        return request != other.request ? request < other.request : address < other.address;
    }
};

const int MAX_PLACES = 512;
static bool profiling;
static Entry *entries;
static size_t entry_count, entry_room;
static unsigned places[MAX_PLACES];
static unsigned visits[MAX_PLACES][MAX_THREADS];

static void log_request(Array &array, size_t offset, size_t bytes, bool write, unsigned place)
{
    if (!profiling || &array == &globals)
        return;
    unsigned k = (place * 2 + write) % MAX_PLACES;
    for (int tries = 0; places[k] != place * 2 + write && places[k] && tries < MAX_PLACES; tries++)
        k = (k + 1) % MAX_PLACES;
    places[k] = place * 2 + write;
    if (entry_count == entry_room) {
        entry_room = 2 * entry_room + 4096;
        entries = (Entry *)realloc(entries, entry_room * sizeof(Entry));
    }
    // 32 lanes that ask for 16 bytes each are served in four parts, in two if it is 8.
    const u64 part = array.site ? threadIdx.x % 32 * bytes / 128 : 0;
    const u64 request = (((u64)k << 32 | visits[k][threadIdx.x]++) << 5 | threadIdx.x / 32) << 2 | part;
    entries[entry_count++] = {request, ((u64)(array.data + offset - space) << 6 | bytes) << 1 | write};
}

// How many times the banks of shared memory must be asked: a bank gives 4 bytes at a time.
static int turns(const Entry *first, const Entry *end)
{
    int words[32] = {}, most = 0;
    long long last = -1;
    for (; first != end; first++)
        for (long long word = first->address >> 9, bytes = first->address >> 1 & 63;
             word <= (long long)((first->address >> 7) + bytes - 1) / 4; word++)
            if (word > last) {
                last = word;
                most = ++words[word % 32] > most ? words[word % 32] : most;
            }
    return most;
}

static int compare(const void *p, const void *q)
{
    const Entry &a = *(Entry *)p, &b = *(Entry *)q;
    return a < b ? -1 : b < a;
}

static void tally()
{
    qsort(entries, entry_count, sizeof(Entry), compare);
    for (size_t k = 0, next; k < entry_count; k = next) {
        for (next = k; next < entry_count && entries[next].request == entries[k].request;)
            next++;
        Array &array = arrays[(entries[k].address >> 7) / slot];
        const bool write = entries[k].address & 1;
        if (array.site) {
            array.requests += !(entries[k].request & 3);
            array.conflicts += turns(entries + k, entries + next) - 1;
            continue;
        }
        array.requests++;
        u64 sector = 0, last = 0;
        for (size_t e = k; e < next; e++) {
            const u64 address = entries[e].address >> 7, bytes = entries[e].address >> 1 & 63;
            if (address != last) {  // lanes that read the same element are served by one access
                (write ? array.stored : array.loaded) += bytes;
                (write ? array.stores : array.loads)++;
            }
            last = address;
            for (u64 s = address / 32; s <= (address + bytes - 1) / 32; s++)
                if (s > sector) {
                    sector = s;
                    array.sectors++;
                }
        }
    }
    entry_count = 0;
    memset(visits, 0, sizeof visits);
}

// ---- One launch ----------------------------------------------------------------------------------

const int MAX_ARGUMENTS = MAX_ARRAYS / 2;
static const char *numbers[MAX_ARGUMENTS + 1];
static int argument_count;
static char order_word[32];
static unsigned flush, opposite, first_block;  // opposite: blocks in the opposite order
static const struct { const char *word; unsigned *number; } settings[] = {
    {"blocks", &gridDim.x}, {"threads", &blockDim.x}, {"shared", &dynamic_bytes}, {"flush", &flush},
    {"opposite", &opposite}, {"first", &first_block}, {"limit", &max_shared}};
const int HEARD = 4;  // what the program returns if blocks have listened to each other

namespace emulated {

char *argument(int k, size_t element_)
{
    Array &array = arrays[k];
    if (!array.name)
        stop("argument %d must be an array", k);
    if (array.bytes % element_)
        stop("%s has %zu bytes, which is not a whole number of elements of %zu bytes", array.name, array.bytes,
             element_);
    array.element = element_;
    return array.data;
}

static const char *number(int k)
{
    if (!numbers[k])
        stop("argument %d must be a number", k);
    return numbers[k];
}

double real(int k) { return strtod(number(k), nullptr); }
long long whole(int k) { return atoll(number(k)); }

}  // namespace emulated

static void shuffle_order(int *order, int count, const char *how)
{
    u64 state = strtoull(how, nullptr, 10) * 2654435761u + count;
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

// The next argument is an array: so many bytes of the file, from first on, each number of so many
// bytes. The array begins so many bytes before.
static void add_array(const char *name, size_t first, size_t bytes, size_t number, size_t begin, int file)
{
    Array &array = arrays[argument_count++];
    array.name = strdup(name);
    array.data = middle(array) - begin;
    array.begin = begin;
    array.bytes = bytes;
    array.element = array.cell = number < 4 ? number : 4;
    keep_accesses(array);
    if (bytes && mmap(middle(array), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, first) == MAP_FAILED)
        stop("the emulator got no memory");
}

// The launch comes from stdin, a line for each part of it, and "run" or "profile" at the end:
//     seconds 300           this program ends then, whatever has become of the one that started it
//     file /tmp/arrays      holds the arrays, and is changed in place
//     blocks 3, threads 64, shared 0, order reverse, flush 1, opposite 0, first 0, limit 232448
//     array x 65536 256 4 0   an argument, named x: 256 bytes of the file from 65536 on, numbers of 4
//                             bytes, and none is left out before them
//     number 0.5              an argument
static void read_launch()
{
    char word[16], text[4096];
    size_t first, bytes, number, begin;
    int file = -1;
    reserve_space();
    while (scanf("%15s", word) == 1 && argument_count <= MAX_ARGUMENTS) {
        profiling = !strcmp(word, "profile");
        if (profiling || !strcmp(word, "run"))
            return;
        if (!strcmp(word, "array") && scanf("%4095s %zu %zu %zu %zu", text, &first, &bytes, &number, &begin) == 5) {
            add_array(text, first, bytes, number, begin, file);
            continue;
        }
        if (scanf(" %4095[^\n]", text) != 1)
            break;
        if (!strcmp(word, "seconds"))
            alarm(atoi(text));
        else if (!strcmp(word, "file"))
            file = open(text, O_RDWR);
        else if (!strcmp(word, "order"))
            snprintf(order_word, sizeof order_word, "%.31s", text);
        else if (!strcmp(word, "number"))
            numbers[argument_count++] = strdup(text);
        for (const auto &setting : settings)
            if (!strcmp(word, setting.word))
                *setting.number = atoi(text);
    }
    stop("a launch with a last line, and at most %d arguments, is expected", MAX_ARGUMENTS);
}

// Numbers below 2**-126 become zero, in what arithmetic takes and in what it gives.
static void flush_to_zero()
{
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
    u64 control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    asm volatile("msr fpcr, %0" ::"r"(control | 1 << 24));
#else
    stop("this processor is not known to flush small numbers to zero");
#endif
}

// What the kernel prints goes to stdout, and the profile to stderr.
namespace emulated {

int launch(void (*kernel_)())
{
    kernel = kernel_;
    signal(SIGALRM, SIG_DFL);
    read_launch();
    if (blockDim.x < 1 || blockDim.x > MAX_THREADS)
        stop("a block has 1 to %d threads, not %u", MAX_THREADS, blockDim.x);
    if (dynamic_bytes > max_shared)
        stop("a block has at most %u bytes of shared memory, not %u", max_shared, dynamic_bytes);
    stacks = (char *)reserve(MAX_THREADS * STACK);
    char *const around = (char *)(((size_t)&globals - GLOBALS / 2) & ~(size_t)15);
    globals = {"a __device__ variable", around, 0, GLOBALS, 1, 0, 1};
    keep_accesses(globals);
    if (flush)
        flush_to_zero();
    launched = true;
    for (int k = MAX_ARRAYS - shared_arrays; k < MAX_ARRAYS; k++)
        make(arrays[k]);
    reports_of = (Reports *)calloc(gridDim.x, sizeof(Reports));
    const int count = gridDim.x - first_block;
    int *blocks = (int *)malloc(count * sizeof(int)), order[MAX_THREADS];
    shuffle_order(blocks, count, order_word);
    for (int b = 0; b < count; b++) {
        blockIdx.x = first_block + blocks[opposite ? count - 1 - b : b];
        reports_of[blockIdx.x].first = reports_of[blockIdx.x].end = report_count;
        shuffle_order(order, blockDim.x, order_word);
        run_block(order);
        if (profiling)
            tally();
    }
    fflush(stdout);
    for (const Array &a : arrays)
        if (a.name && profiling)
            fprintf(stderr, "%s%s %lld %lld %lld %lld %lld %lld %lld\n", a.site ? "shared " : "", a.name, a.loaded,
                    a.stored, a.loads, a.stores, a.requests, a.sectors, a.conflicts);
    return listened ? HEARD : 0;
}

}  // namespace emulated
