"""Wrong kernels: what is changed in the solution, and the words that check must say.

Each is compiled: a few seconds.
"""

SQUARE = "sum_of_lanes(value * value) / 32 - (value - xc) * (value - xc);"
IN_STEP = "__syncthreads();  // this step is done, and after the last one slots[0]"
ADDED = "slots[threadIdx.x] += slots[threadIdx.x + half];\n        "
IF = "if (threadIdx.x < half)\n            "
STORE = "            s[start + i] = row[v];"
TWICE = "{ s[start + i] = row[v]; row[v] = s[start + i]; }"
ONE_VECTOR = "s[start + i] = row[v];"
ONE_NUMBER = "for (int j = 0; j < WIDTH; j++) s[start + i].at[j] = row[v].at[j];"
LOOP = """#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int i = member<THREADS>() + v * THREADS;
"""
LOADS = f"""    load<THREADS>(a, start, vectors, row);
    load<THREADS>(b, start, vectors, other);
{LOOP}"""
LOADS_IN_LOOP = LOOP + LOADS.removesuffix(LOOP)
CHUNK = LOOP.replace("member<THREADS>() + v * THREADS", "threadIdx.x * VECTORS + v")
CHUNKS = f"""{CHUNK}        row[v] = i < vectors ? a[start + i] : Vector<WIDTH>();
        other[v] = i < vectors ? b[start + i] : Vector<WIDTH>();
    }}
{CHUNK}"""
SQUARES = "block_sum<THREADS>(sum_of_squares(row), 0)"
GAIN = "    load<THREADS>(gamma"
EARLY = "    if (threadIdx.x >= vectors) return;\n"
CLEAR = "total[v] = Vector<WIDTH>();"
NORMALISE, SUM, ADD = "normalise_in_a_warp", "sum_with_barriers", "add_while_loading"
FORWARD, BACKWARD = "rms_forward_kernel", "rms_backward_kernel"

WRONG = [
    (NORMALISE, "bits < 32", "bits <= 32", "Does bits go up to 32?"),
    (NORMALISE, "xor_sync", "down_sync", "lane 0 alone has the sums"),
    (NORMALISE, "xor_sync", "up_sync", "lane 31 alone has the sums"),
    (NORMALISE, "sum_of_lanes(xc * xc) / 32;", SQUARE, "lose their digits there"),
    (NORMALISE, "+= __shfl", "= __shfl", "each step replaces the sum so far"),
    (NORMALISE, "value, bits)", "value, threadIdx.x ^ bits)", "every lane reads lane number bits"),
    (NORMALISE, "0xffffffff", "0xffff", "is not in the mask of its own shuffle"),
    (SUM, "__syncthreads();  // the slots", "//", "A slot is added before the thread that fills"),
    (SUM, IN_STEP, "", "A step uses slots that the step before has yet to change"),
    (SUM, "__syncthreads();  // all have", "//", "One sum alone is right. But when a second"),
    (
        SUM,
        ADDED + IN_STEP,
        f"{{ {ADDED} __syncthreads(); }} else {{ __syncthreads(); }}",
        "in an if and another in its else",
    ),
    (SUM, ADDED + IN_STEP, f"{{ {ADDED} __syncthreads(); }}", "threads that skip it do not arrive"),
    (SUM, "    return total;\n", "    return total; __syncthreads();\n", "no thread reaches it"),
    (NORMALISE, "bits *= 2", "bits += 1", "It doubles from step to step"),
    (SUM, IF + ADDED + IN_STEP, f"__syncthreads(); {IF}{ADDED}", "before thread 0 has added"),
    (SUM, "= slots[0]", "= slots[threadIdx.x]", "squares: each thread gets its own slot"),
    (ADD, STORE, "            ;", "s: only NaN: nothing was written to s"),
    (ADD, "load<THREADS>(a, start, vectors, row);", "", "from registers that were never filled"),
    (ADD, "vectors, other);", "vectors, row);", "never fills other"),
    (ADD, "s[start + i]", "s[start + v]", "Vector i of the row belongs at start + i"),
    (ADD, "i < vectors", "i < VECTORS", "few vectors are written"),
    (ADD, STORE, TWICE, "8 of s, 4 of y"),
    (ADD, ONE_VECTOR, ONE_NUMBER, "2500 sectors of s are asked for, where 625 are enough"),
    (ADD, LOADS, LOADS_IN_LOOP, "load once, before the loop over v"),
    (ADD, LOADS, CHUNKS, "a chunk of vectors for each thread"),
    (ADD, "s[start + i]", "s[(int)start + i]", "needs a long long"),
    (ADD, "v * THREADS", "v * 64", "32 threads with 8 vectors"),
    (ADD, "member<THREADS>()", "threadIdx.x", "four rows in a block"),
    (ADD, "s[start + i]", "s[i]", "blocks run in any order"),
    (FORWARD, SQUARES, "sum_of_squares(row)", "every thread has only its own"),
    (FORWARD, "        if (i < vectors)\n", "", "and ends: if (i < vectors)"),
    (FORWARD, "D / WIDTH", "D / 4", "but for rows of 201"),
    (FORWARD, GAIN, f"load<THREADS>(x, start, vectors, row);\n{GAIN}", "x is loaded 2 times"),
    (FORWARD, "    Vector<WIDTH> row", f"{EARLY}    Vector<WIDTH> row", "without vectors too"),
    (FORWARD, "reciprocal_std(ms, eps)", "reciprocal_std(ms, 0)", "rstd: eps is missing."),
    (BACKWARD, GAIN, EARLY + GAIN, "All threads must call block_sum"),
    (BACKWARD, "rstd[n]", "rstd[blockIdx.x]", "row n needs its own"),
    (BACKWARD, "        buffer = 1 - buffer;\n", "", "of layernorm.cu, with no barrier"),
    (BACKWARD, CLEAR, "store<THREADS>(dx, 0, 0, total);", "adds to total, which never got a value"),
    (BACKWARD, "block_sum<THREADS>(along, buffer)", "warp_sum(along)", "every warp has only its"),
]
