"""Wrong answers to lesson 06: what a learner changed in the solution, and what check must say."""

BARRIER = "    __syncthreads();"
FILLED = "__syncthreads();  // the slots are filled"
IN_STEP = "__syncthreads();  // this step is done, and after the last one slots[0]"
READ = "__syncthreads();  // all have read it, and the slots may be filled again"
RIGHT_COLUMNS = "[vector * width + j for vector in vectors for j in range(width)]"

WRONG = {
    "columns_of": [
        (
            "range(thread, D // width, threads)",
            "range(thread * (-(-D // width // threads)), "
            "min(D // width, (thread + 1) * -(-D // width // threads)))",
            "uncoalesced, and slow",
        ),
        ("D // width, threads)", "D // width, width)", "is asked"),
        (RIGHT_COLUMNS, "list(range(thread, D, threads))", "the vectors are forgotten"),
        (RIGHT_COLUMNS, "list(vectors)", "the numbers of the vectors"),
        (" + j for vector in vectors for j in range(width)", " for vector in vectors", "alone"),
        (
            RIGHT_COLUMNS,
            "[k + j for k in range(thread, D, threads * width) for j in range(width)]",
            "the vectors of neighbours overlap",
        ),
        (
            RIGHT_COLUMNS,
            "[k + j for k in range(thread * width, D, threads) for j in range(width)]",
            "steps of threads columns",
        ),
        ("range(thread, D // width, threads)", "[thread]", "the first vector alone"),
        (
            "range(thread, D // width, threads)",
            "[thread + v * threads for v in range(-(-D // (width * threads)))]",
            "past the end of the row",
        ),
        (
            "for vector in vectors for j in range(width)",
            "for j in range(width) for vector in vectors",
            "in another order",
        ),
        ("vector * width + j", "vector + j", "the largest error is at"),
        ("D // width, threads", "D // width - 1, threads", "is asked"),
        ("D // width", "D", "a row has D // width of them"),
    ],
    "normalise_in_a_warp": [
        ("bits < 32", "bits < 16", "16 joins them"),
        ("bits = 1;", "bits = 2;", "even lanes hear of even ones only"),
        (
            "int bits = 1; bits < 32; bits *= 2",
            "int bits = 8; bits > 0; bits /= 2",
            "16 joins them",
        ),
        ("xor_sync", "down_sync", "lane 0 alone has the sums"),
        (
            "int bits = 1; bits < 32; bits *= 2)\n        value += __shfl_xor_sync",
            "int bits = 16; bits > 0; bits /= 2)\n        value += __shfl_down_sync",
            "lane 0 alone has the sums",
        ),
        (
            "    for (int bits = 1; bits < 32; bits *= 2)\n"
            "        value += __shfl_xor_sync(0xffffffff, value, bits);\n    return value;",
            "    float total = value;\n    for (int bits = 1; bits < 32; bits *= 2)\n"
            "        total += __shfl_xor_sync(0xffffffff, value, bits);\n    return total;",
            "must send the sum so far",
        ),
        ("sum_of_lanes(value) / 32", "sum_of_lanes(value)", "where the mean belongs"),
        ("sum_of_lanes(xc * xc) / 32", "xc * xc / 32", "not added up over the lanes"),
        ("sum_of_lanes(xc * xc)", "sum_of_lanes(value * value)", "centre before you square"),
        ("sqrtf(var + eps)", "(sqrtf(var) + eps)", "eps stands outside the root"),
        ("sqrtf(var + eps)", "(var + eps)", "the root is missing"),
        ("0xffffffff", "0xffff", "is not in the mask of its own shuffle"),
        ("(int bits = 1", "(bits = 1", "does not compile: your source:3:"),
        ("float normalise(", "float normalize(", "a text without the function normalise"),
    ],
    "sum_with_barriers": [
        (FILLED, "", "A slot is added before the thread that fills it has done so."),
        (IN_STEP, "", "A step uses slots that the step before has yet to change."),
        (READ, "", "One sum alone is right. But when a second one follows"),
        (
            "            slots[threadIdx.x] += slots[threadIdx.x + half];\n"
            "        __syncthreads();",
            "            {\n            slots[threadIdx.x] += slots[threadIdx.x + half];\n"
            "        __syncthreads();\n            }",
            "the threads that skip it do not arrive",
        ),
        (
            "        if (threadIdx.x < half)\n"
            "            slots[threadIdx.x] += slots[threadIdx.x + half];\n"
            "        " + IN_STEP,
            "        __syncthreads();\n        if (threadIdx.x < half)\n"
            "            slots[threadIdx.x] += slots[threadIdx.x + half];",
            "The result is read before thread 0 has added the last part.",
        ),
        ("= slots[0]", "= slots[threadIdx.x]", "total, squares: each thread gets its own slot"),
        ("half > 0", "half > 1", "the last step, half = 1, is missing"),
        ("half = THREADS / 2", "half = THREADS / 4", "the first step is missing"),
        ("half = THREADS / 2", "half = THREADS", "is out of range"),
    ],
    "add_while_loading": [
        ("            row[v].at[j] += other[v].at[j];", "            ;", "b is not added"),
        (
            "            row[v].at[j] += other[v].at[j];\n        if (i < vectors)\n"
            "            s[start + i] = row[v];",
            "            other[v].at[j] += row[v].at[j];\n        if (i < vectors)\n"
            "            s[start + i] = other[v];",
            "y: made from a alone",
        ),
        ("            s[start + i] = row[v];", "            ;", "s: nobody writes it"),
        ("        if (i < vectors)\n", "", "Each row begins at start"),
        ("row[v];\n    }", "row[v];\n        row[v] = s[start + i];\n    }", "out of range"),
        (
            "            s[start + i] = row[v];",
            "            { s[start + i] = row[v]; row[v] = s[start + i]; }",
            "20 bytes per element",
        ),
        (
            "        if (i < vectors)\n",
            "        if (i < vectors && v == 0)\n",
            "first vector of each",
        ),
        ("load<THREADS>(b,", "load<THREADS>(a,", "s, y: a is added twice"),
        (
            "load<THREADS>(a, start, vectors, row);",
            "for (int v = 0; v < VECTORS; v++)\n        if (threadIdx.x + v * THREADS < vectors)\n"
            "            row[v] = a[start + threadIdx.x + v * THREADS];",
            "y: in padding, or everywhere, row is not filled",
        ),
        ("v < VECTORS", "v < 4", "but not for 32 threads with 8 vectors of 1"),
        ("v * THREADS", "v * 64", "32 threads with 8 vectors"),
        ("s[start + i]", "s[i]", "blocks run in any order"),
    ],
}
