"""The four variances: right where they promise to be. Where they are wrong lesson 04 asserts."""

from fractions import Fraction

import numpy as np
import pytest

from lnlib import variance

ALL = [variance.naive, variance.two_pass, variance.welford, variance.corrected_two_pass]
UNIT = {np.float16: 2.0**-11, np.float32: 2.0**-24, np.float64: 2.0**-53}


def exact(row):
    values = [Fraction(float(v)) for v in row]
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values) / len(values)


def error(function, x):
    """Largest relative error over the rows, against exact rational arithmetic."""
    with np.errstate(all="ignore"):
        got = function(x)
    truth = [exact(row) for row in x]
    return max(abs(float((Fraction(float(v)) - t) / t)) for v, t in zip(got, truth))


def rows(offset, dtype, D=200, seed=0):
    return (offset + np.random.default_rng(seed).standard_normal((5, D))).astype(dtype)


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
def test_all_agree_near_zero(function, dtype):
    assert error(function, rows(0, dtype)) < 12 * UNIT[dtype]


@pytest.mark.parametrize(
    "dtype, offset", [(np.float16, 100), (np.float32, 1e7), (np.float64, 1e14)]
)
def test_corrected_two_pass_does_not_feel_the_offset(dtype, offset):
    assert error(variance.corrected_two_pass, rows(offset, dtype)) < 6 * UNIT[dtype]


def test_corrected_two_pass_ends_where_the_mean_is_rounded_by_many_deviations():
    """About u**3 (mean / std)**2, of float32 rows that are equal but for one entry."""
    D, u, errors = 10**6, UNIT[np.float32], []
    for c in range(13_000_000, 13_000_024):
        x = np.full(D, c, np.float32)
        x[0] += 1
        errors.append(abs(variance.corrected_two_pass(x) * D**2 / (D - 1) - 1))
    assert 0.05 < max(errors) < 1000 * u**3 * 1.3e7**2 * D


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
def test_shapes_dtypes_and_inputs(function, dtype):
    for shape in ((5,), (3, 5), (2, 3, 5), (0, 5), (4, 1)):
        x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        before = x.copy()
        result = function(x)
        assert result.shape == shape[:-1] and result.dtype == dtype
        assert np.array_equal(x, before)
        assert np.allclose(result, x.astype(np.float64).var(axis=-1), rtol=20 * UNIT[dtype], atol=0)


@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
def test_bad_input(function):
    with pytest.raises(TypeError, match="x must be floating-point"):
        function(np.arange(5))
    with pytest.raises(TypeError, match="x must be real"):
        function(np.ones(3, complex))
    with pytest.raises(ValueError, match="D >= 1"):
        function(np.ones((3, 0)))
    with pytest.raises(ValueError, match=r"\(..., D\)"):
        function(2.0)
    with pytest.raises(ValueError, match="D = 65505 is more than float16 can hold"):
        function(np.ones((2, 65505), np.float16))
    assert function(np.tile(np.float16([1, 3]), 1000)) == 1
