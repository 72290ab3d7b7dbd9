"""What lesson 07 builds on: lists of sweeps, their prices, and page faults."""

import platform

import numpy as np
import pytest

from lnlib import meter
from lnlib.meter import Sweep

N, D = 64, 24
x, y, buffer = (np.ones((N, D), np.float32) for _ in range(3))
gamma, beta = np.ones((2, D), np.float32)


def a_version(x, gamma, beta, y, buffer):
    np.multiply(x, x.sum(axis=-1, keepdims=True), out=y)
    np.multiply(y, y, out=buffer)
    y += np.sqrt(np.vecdot(buffer, gamma))[:, None]
    y *= gamma


def test_sweeps_say_what_is_read_and_where_it_goes():
    found, small = meter.sweeps(a_version, x, gamma, beta, y, buffer, rows=16)
    assert small == 1  # the root
    assert found == [
        Sweep("add.reduce", ("array",), "sums", "read"),
        Sweep("multiply", ("array", "column"), "out", "write"),
        Sweep("multiply", ("array",), "out", ""),
        Sweep("vecdot", ("array", "row"), "sums", ""),
        Sweep("add", ("array", "column"), "in place", ""),
        Sweep("multiply", ("array", "row"), "in place", ""),
    ]


def test_the_whole_array_is_one_block_and_results_may_be_new():
    found, _ = meter.sweeps(lambda x, gamma, *_: x * gamma, x, gamma, beta, y, buffer, rows=N)
    assert found == [Sweep("multiply", ("array", "row"), "fresh", "")]
    found, _ = meter.sweeps(a_version, x, gamma, beta, y, buffer, rows=N)
    assert {sweep.memory for sweep in found} == {""}
    assert [sweep.target for sweep in found][:2] == ["sums", "out"]


@pytest.mark.parametrize("rows", [0, D, N + 1])
def test_rows_that_cannot_be_told_apart_are_refused(rows):
    with pytest.raises(ValueError, match=f"rows is {rows}"):
        meter.sweeps(a_version, x, gamma, beta, y, buffer, rows)


def test_sweeps_are_priced_where_their_blocks_are(monkeypatch):
    """One sweep a block, over one block or over all, with the buffer that was asked for."""
    seen = []

    def least(calls, seconds):
        for call in calls.values():
            call()
            seen.append((work.copy(), result.copy(), np.getbufsize()))
            work[:], result[:] = 1, 1
        return dict.fromkeys(calls, 1e-9 * N * D)

    monkeypatch.setattr(meter, "least", least)
    work, result = np.zeros((2, N, D), np.float32)
    places = ("out", "write"), ("in place", ""), ("in place", "read")
    kinds = [Sweep("add", ("array",), *place) for place in places]
    before = np.getbufsize()
    found = meter.prices(kinds, work, result, rows=16, buffer_size=32)
    assert found == dict.fromkeys(kinds, pytest.approx(1.0)) and np.getbufsize() == before
    assert [size for *_, size in seen] == [32, 32, 32]
    assert (seen[0][0] == 1).all() and (seen[0][1] == 2).all()  # each block of the result
    assert (seen[1][0][:16] == 16).all() and (seen[1][0][16:] == 1).all()  # 4 times 2
    assert (seen[2][0] == 2).all()  # each block of the array


def test_prices_of_all_kinds_leave_ones():
    work, result = np.zeros((2, N, D), np.float32)
    kinds = meter.sweeps(a_version, x, gamma, beta, y, buffer, rows=16)[0]
    kinds += meter.sweeps(lambda x, gamma, *_: x - gamma, x, gamma, beta, y, buffer, rows=N)[0]
    kinds = [k for k in kinds if k.operands != ("array",)]  # 1 + 1 is not 1
    found = meter.prices(kinds, work, result, 16, seconds=0.01)
    assert set(found) == set(kinds) and min(found.values()) > 0
    assert (work == 1).all() and (result == 1).all()
    with pytest.raises(ValueError, match="rows is 65"):
        meter.prices(kinds, work, result, 65)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_the_first_call_faults_and_an_allocator_that_keeps_everything_does_not(monkeypatch):
    found = meter.page_faults([2, 3])
    for name, value in meter.KEEP.items():
        monkeypatch.setenv(name, value)
    kept = meter.page_faults([2, 3])
    assert list(found) == [
        f"{call} call{after}" for after in ("", ", after 31 MiB") for call in ("first", "second")
    ]
    size, faults, seconds = found["first call"].T
    assert size.tolist() == [2, 3] and (faults > 500).all() and (seconds > 0).all()
    assert (kept["second call"][:, 1] < 50).all()
