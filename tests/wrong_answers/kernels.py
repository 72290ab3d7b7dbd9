"""Wrong kernels: what is changed in the solution, and the words that check must say.

Each is compiled: a few seconds.
"""

BITS = "int bits = 1; bits < 32; bits *= 2"
FILLED = "__syncthreads();  // the slots are filled"
IN_STEP = "__syncthreads();  // this step is done, and after the last one slots[0]"
ADDED = "slots[threadIdx.x] += slots[threadIdx.x + half];\n        "
READ = "__syncthreads();  // all have read it, and the slots may be filled again"
LOAD_A = "load<THREADS>(a, start, vectors, row);"
STORE = "            s[start + i] = row[v];"
SQUARES = "block_sum<THREADS>(sum_of_squares(row), 0)"
CLEAR = "for (int v = 0; v < VECTORS; v++) total[v] = Vector<WIDTH>();"

WRONG = {
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
        (FILLED, "", "A slot is added before the thread that fills it has done so"),
        (IN_STEP, "", "A step uses slots that the step before has yet to change"),
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
    "rms_forward_kernel": [
        (SQUARES, "sum_of_squares(row)", "every thread has only its own"),
        ("        if (i < vectors)\n", "", "store only where i < vectors"),
        ("    if (threadIdx.x == 0)\n", "", "no barrier in between"),
        ("D / WIDTH", "D / 4", "but for rows of 201"),
        ("        rstd[blockIdx.x] = r;", "        ;", "never written"),
        (
            "    load<THREADS>(gamma",
            "    load<THREADS>(x, start, vectors, row);\n    load<THREADS>(gamma",
            "x is loaded 2 times",
        ),
    ],
    "rms_backward_kernel": [
        ("        buffer = 1 - buffer;\n", "", "no barrier in between"),
        ("block_sum<THREADS>(along, buffer)", "warp_sum(along)", "every warp has only its own"),
        ("        float along = 0;", f"        float along = 0; {CLEAR}", "only the last row"),
        ("            if (i < vectors)\n", "", "store only where i < vectors"),
    ],
}
