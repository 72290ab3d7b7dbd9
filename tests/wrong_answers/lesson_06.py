"""Wrong answers to lesson 06: what a learner changed in the solution, and what check must say."""

WRONG = {
    "columns_of": [
        ("vector * width + j", "vector + j", "Run it again: columns_of(25, 64, 4, 1000)"),
        ("D // width, threads)", "D // width - 1, threads)", "which has the last vector"),
    ],
}

# ---- Kernels, compiled by test_exercise_kernels.py: a few seconds each ---------------------------

BITS = "int bits = 1; bits < 32; bits *= 2"
FILLED = "__syncthreads();  // the slots are filled"
IN_STEP = "__syncthreads();  // this step is done, and after the last one slots[0]"
ADDED = "slots[threadIdx.x] += slots[threadIdx.x + half];\n        "
READ = "__syncthreads();  // all have read it, and the slots may be filled again"
LOAD_A = "load<THREADS>(a, start, vectors, row);"
STORE = "            s[start + i] = row[v];"

KERNELS = {
    "normalise_in_a_warp": [
        (BITS, "int bits = 1; bits <= 32; bits *= 2", "Does bits go up to 32?"),
        ("xor_sync", "down_sync", "lane 0 alone has the sums"),
        (
            "sum_of_lanes(xc * xc) / 32;",
            "sum_of_lanes(value * value) / 32 - (value - xc) * (value - xc);",
            "loses its digits there",
        ),
        ("0xffffffff", "0xffff", "is not in the mask of its own shuffle"),
    ],
    "sum_with_barriers": [
        (FILLED, "", "A slot is added before the thread that fills it has done so."),
        (IN_STEP, "", "A step uses slots that the step before has yet to change."),
        (READ, "", "One sum alone is right. But when a second one follows"),
        (ADDED + IN_STEP, f"{{ {ADDED} __syncthreads(); }}", "threads that skip it do not arrive"),
        (
            f"if (threadIdx.x < half)\n            {ADDED}{IN_STEP}",
            f"__syncthreads(); if (threadIdx.x < half) {ADDED}",
            "The result is read before thread 0 has added the last part.",
        ),
        ("= slots[0]", "= slots[threadIdx.x]", "total, squares: each thread gets its own slot"),
        ("half = THREADS / 2", "half = THREADS", "is out of range"),
    ],
    "add_while_loading": [
        (STORE, "            ;", "s: nobody writes it"),
        (LOAD_A, "", "writes s, but only NaN: something in it never got a value"),
        ("        if (i < vectors)\n", "", "Each row begins at start"),
        (STORE, "            { s[start + i] = row[v]; row[v] = s[start + i]; }", "20 bytes per"),
        ("v * THREADS", "v * 64", "32 threads with 8 vectors"),
        ("s[start + i]", "s[i]", "blocks run in any order"),
        (STORE, "{ const int k = start + i; s[k] = row[v]; }", "int k = start + i cuts start"),
    ],
}
