"""The trace sees each operation of NumPy that moves numbers, and a cache of so many pages."""

import concurrent.futures

import numpy as np
import pytest

from lnlib.trace import MAKERS, PAGE, Step, trace, traffic


def seen(function, *arrays):
    """Return each step's name, FLOPs, bytes read and written."""
    _, steps = trace(function, *arrays)
    return [
        (s.name, s.flops, sum(n for _, n in s.reads), sum(n for _, n in s.writes)) for s in steps
    ]


def test_trace_leaves_everything_as_it_was():
    makers = [getattr(np, name) for name in MAKERS]
    with pytest.raises(ZeroDivisionError):
        trace(lambda a: 1 / 0, np.ones(3))
    assert [getattr(np, name) for name in MAKERS] == makers


def work(a):
    c = np.empty((3, 2))
    np.matmul(a, np.ones((5, 2)), out=c)  # 2 * 3 * 5 * 2
    c += 1  # 6
    return c.sum(axis=0), a  # 6


def assign(a):
    out = np.empty_like(a)
    out[1:] = a[1:]  # 40
    out[:1] *= 2  # the product is seen, the assignment of the same place to itself moves nothing
    out[[0, 1]] = 1.0  # an index of arrays counts as the whole array
    return out[[0]]


def scatter(a):
    out = np.zeros((3, 5))
    np.copyto(out, a)
    np.add.at(out, [0, 0, 2], 1.0)  # 15
    out.fill(3)


MADE = [("ones", 0, 0, 80), ("matmul", 60, 200, 48), ("add", 6, 48, 48), ("add.reduce", 6, 48, 16)]
WATCHED = [
    (work, MADE),
    (assign, [("setitem", 0, 80, 80), ("multiply", 5, 40, 40), ("setitem", 0, 0, 120)]),
    (scatter, [("copyto", 0, 120, 120), ("add.at", 15, 120, 120), ("fill", 0, 0, 120)]),
    (lambda a: np.einsum("ij,ij->i", a, a), [("einsum", 30, 120, 24)]),
    (lambda a: np.einsum("ij,kj->ik", a, a, out=np.empty((3, 3))), [("einsum", 90, 120, 72)]),
    (lambda a: np.concatenate([a, a]), [("concatenate", 0, 120, 240)]),
    (lambda a: np.concatenate([a[:1], a[1:]], out=a), [("concatenate", 0, 120, 120)]),
    (lambda a: np.stack([a.copy()]), [("copy", 0, 120, 120), ("concatenate", 0, 120, 120)]),
    (lambda a: np.array(a[:, 0]), [("array", 0, 88, 24)]),
    (lambda a: a.astype(np.float32), [("astype", 0, 120, 60)]),
    (lambda a: (a.T.reshape(5, 3, 1), np.asarray(a), a[0, 0], np.shape(a), a[::2]), []),
    (lambda a: np.linalg.norm(a, axis=1), [("norm", 0, 120, 24)]),
    (lambda a: np.dot(a, a[0]), [("dot", 30, 120, 24)]),
    (lambda a: np.vecdot(a, a, axis=0), [("vecdot", 30, 120, 40)]),
    (lambda a: a.sum(where=np.zeros(5, bool)), [("add.reduce", 0, 125, 0)]),
    (lambda a: np.add.accumulate(a), [("add.accumulate", 15, 120, 120)]),
    (lambda a: a[:0] * 2 + a[:0].sum(), [("multiply", 0, 0, 0), ("add.reduce", 0, 0, 0)]),
]


@pytest.mark.parametrize("function, expected", WATCHED)
def test_everything_that_moves_numbers_is_seen(function, expected):
    steps = seen(function, np.ones((3, 5)))
    assert [step for step in steps if step[0] != "zeros"][: len(expected)] == expected
    assert expected or not steps


def test_where_is_seen_and_counts_what_it_lets_through():
    def work(a, mask):
        return np.add(a, 1, where=mask, out=np.empty_like(a))

    assert seen(work, np.ones((4, 6)), np.arange(6) < 2) == [("add", 8, 4 * 48 + 6, 4 * 48)]


@pytest.mark.skipif(not hasattr(np, "matvec"), reason="NumPy 2.2 has matvec")
def test_products_of_matrices_and_vectors():
    def work(a, row, column):
        return np.matvec(a, row), np.vecmat(column, a)

    flops = [step[1] for step in seen(work, np.ones((4, 5)), np.ones(5), np.ones(4))]
    assert flops == [40, 40]


def test_a_trace_within_a_trace():
    inner = []

    def outer(a):
        b, inner[:] = trace(lambda a: a + 1, a)
        return b * 2

    assert [step[0] for step in seen(outer, np.ones(3))] == ["multiply"]
    assert [step.name for step in inner] == ["add"]


def test_traces_in_threads_see_their_own_work_and_put_numpy_back():
    makers = [getattr(np, name) for name in MAKERS]

    def work(a):
        for _ in range(len(a)):
            a = np.empty_like(a) * np.ones(len(a))
        if len(a) == 3:
            raise ZeroDivisionError
        return a

    def count(n):
        try:
            return [step.name for step in trace(work, np.ones(n))[1]].count("multiply")
        except ZeroDivisionError:
            return None

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(count, [2, 3, 4, 50])) == [2, None, 4, 50]
    assert [getattr(np, name) for name in MAKERS] == makers


def test_threads_that_a_function_starts_are_seen():
    def work(a):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: a + np.ones(3)).result()

    assert [step.name for step in trace(work, np.ones(3))[1]] == ["ones", "add"]


def page_step(reads, writes):
    return Step("", 0, [(p * PAGE, PAGE) for p in reads], [(p * PAGE, PAGE) for p in writes])


@pytest.mark.parametrize(
    "steps, pages, moved",
    [
        ([([1], []), ([1], [])], 2, 1),  # the second read is free
        ([([1], []), ([2], []), ([1], [])], 1, 3),  # unless something came in between
        ([([1], []), ([2], []), ([1], []), ([3], []), ([1], [])], 2, 3),  # 2 was the oldest
        ([([], [1])], 2, 1),  # a write leaves in the end, and needs no read
        ([([], [1]), ([1], [1]), ([1], [1])], 2, 1),  # once
        ([([1], [1])], 2, 2),  # read, then written
        ([([], [1]), ([2], []), ([1], [])], 1, 3),  # written back, read again
    ],
)
def test_traffic_by_hand(steps, pages, moved):
    assert traffic([page_step(*s) for s in steps], pages * PAGE) == moved * PAGE


def test_a_page_that_is_written_is_read_first_if_asked():
    steps = [page_step([1], [2]), page_step([2], [2])]  # a copy, then in place
    assert traffic(steps, 2 * PAGE) == 2 * PAGE
    assert traffic(steps, 2 * PAGE, write_allocate=True) == 3 * PAGE


def test_an_operand_within_another_is_read_once():
    x = np.ones((4, 8))
    (step,) = trace(lambda x: x == x[:, 3:4], x)[1]
    assert sum(size for _, size in step.reads) == x.nbytes
