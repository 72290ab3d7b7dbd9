"""The promise of `lnlib.layernorm` where it is hard to keep, and the theorem's bound above it."""

import adversary
import numpy as np
import pytest
from bounds import U, bound
from execute_notebooks import NOTEBOOKS, cells_of
from layers import KERNEL, LAYERS, each_layer, needs_compiler
from oracle import AT_LARGE, EVERY_ROW, fractions, oracle, promised

LONGEST = {"kernel": 1025}  # emulated: longer rows take seconds


def rows_with_outliers(D, rng):
    """Equal sizes and one entry as large as all others together; Gaussian and one larger entry."""
    x = [s * np.where(np.arange(D) % 2, -1.0, 1) for s in rng.uniform(0.5, 2, 3)]
    for row, share in zip(x, (0.5, 1, 2)):
        row[0] = share * D**0.5 * abs(row[1])
    for size in (5, 20, 100):
        x.append(rng.standard_normal(D))
        x[-1][rng.integers(D)] = size
    return np.array(x)


DY = {
    "along signs": lambda xc, rng: np.sign(xc),
    "along x_hat": lambda xc, rng: xc,
    "along 1": lambda xc, rng: 1e4 + rng.standard_normal(xc.shape),
    "along both": lambda xc, rng: 1e4 * xc.std(axis=-1, keepdims=True) + xc,
}


@each_layer
@pytest.mark.parametrize("kind", DY)
@pytest.mark.parametrize("D", [16, 256, 1024, 4096])
def test_rows_with_outliers(layer, kind, D):
    D = min(D, LONGEST.get(layer.name, D))
    rng = np.random.default_rng(D)
    in_float32 = layer.name in ("blocked", "kernel", "compiled")  # they add up
    limit = 1e-6 if in_float32 else AT_LARGE
    for offset in (0, 1e3, 1e7):
        x = (rows_with_outliers(D, rng) + offset).astype(np.float32)
        xc = x - x.mean(axis=-1, keepdims=True, dtype=float)
        for gamma in (np.ones(D), rng.uniform(0.5, 2, D)):
            arrays = [a.astype(np.float32) for a in (DY[kind](xc, rng), x, gamma, np.zeros(D))]
            errors = fractions(layer.both(*arrays), *arrays)
            assert errors.largest() <= limit, (offset, errors)


CLIMBS = {"reference": 6, "staged": 6, "blocked": 6, "kernel": 1, "compiled": 6}
BOUNDED = "reference", "blocked", "kernel"  # `bound` counts their roundings


@each_layer
def test_the_adversary_finds_nothing_above_promise_or_bound(layer):
    lengths = [D for D in adversary.LENGTHS if D <= (128 if layer.name == "kernel" else 1024)]
    found = adversary.search(layer, climbs=CLIMBS[layer.name], seed=4, lengths=lengths)
    for name, (fraction, arrays) in found.items():
        assert fraction <= getattr(EVERY_ROW, name), (name, arrays)
        if arrays and name in ("y", "dx") and layer.name in BOUNDED:
            arrays = [a.astype(np.float32) for a in arrays]
            assert fraction <= getattr(bound(layer.name, *arrays), name).max()
    assert found["dx"][0] > 1e-7 or layer.name == "kernel"  # it searched


@pytest.mark.parametrize("layer", ["reference", KERNEL], indirect=True)
@pytest.mark.parametrize("start", adversary.STARTS, ids=lambda start: start.__name__)
def test_the_bound_is_near_what_is_found(layer, start):
    """Within a factor of 30 for each start of its own; the longest search comes within 10."""
    D = 64
    for seed, target in enumerate(("y", "dx")):
        rng = np.random.default_rng([seed, 7])
        fraction, arrays = adversary.climb(layer, target, D, start, rng, steps=3)
        above = getattr(bound(layer.name, *(a.astype(np.float32) for a in arrays)), target).max()
        assert fraction <= above <= 30 * fraction


@pytest.mark.parametrize("offset", [0, 1e3, 1e7])
@pytest.mark.parametrize("D", [3, 64, 500])
def test_float64_is_truth_enough(D, offset):
    rng = np.random.default_rng(D)
    x = offset + rows_with_outliers(D, rng)[:4]
    dy = 1e4 + rng.standard_normal(x.shape)
    arrays = [a.astype(np.float32) for a in (dy, x, rng.uniform(0.5, 2, D), np.ones(D))]
    (truths, exact), (results, scales) = oracle(*arrays), promised(*arrays)
    assert all(np.allclose(a, b, rtol=1e-12) for a, b in zip(exact, scales))
    assert all(np.max(np.abs(a - b) / s) < 1e-14 for a, b, s in zip(results, truths, scales))


@each_layer
def test_the_mean_of_g_where_x_hat_is_not_zero(layer):
    """Where g is only -mean(g), x_hat has two levels: rounding all of one level alike moves c."""
    D = LONGEST.get(layer.name, 4097) - 1
    rng, third = np.random.default_rng(8), D // 3
    gamma, dy, x = np.zeros(D), np.zeros((40, D)), np.zeros((40, D))
    gamma[: D // 2], dy[:, : D // 2], dy[:, D // 2 : D // 2 + 40] = 1, 1, -D / 80
    up = rng.uniform(0.5, 2, (40, 1))
    outlier = rng.uniform(0.2, 1.4, (40, 1)) * D**0.5
    x[:, -third:-1] = -(outlier + third // 2 * up) / (third - 1 - third // 2)
    x[:, -third : -third + third // 2] = up
    x[:, -1:] = outlier
    arrays = [a.astype(np.float32) for a in (dy, x, gamma, np.zeros(D))]
    assert fractions(layer.both(*arrays), *arrays).dx.max() <= AT_LARGE


@each_layer
def test_x_hat_with_a_mean_and_g_with_a_mean(layer):
    """The search's worst find: rounding shifts x_hat, and gamma[0] is far from gamma's mean."""
    rng = np.random.default_rng(3)
    x = np.full((1, 1000), 1e6 / 3)
    x[0, 400] += 1
    dy, gamma = 1700 + rng.standard_normal(x.shape), rng.uniform(0.5, 3, 1000)
    gamma[0] = 3
    arrays = [a.astype(np.float32) for a in (dy, x, gamma, np.zeros(1000))]
    assert fractions(layer.both(*arrays), *arrays).dx.max() <= AT_LARGE


@each_layer
def test_sums_that_are_rounded_one_way(layer):
    """Each addition of NumPy's lanes is half way between two numbers, and rounded to the sums'.

    So the computed mean is 0, and the mean is 6u of the spread.
    """
    sums = np.arange(17) * (1 + 2.0**-6)
    half = np.spacing(sums[1:].astype(np.float32)).astype(float) / 2
    half[0] = 0
    rounded_up, rounded_down = np.diff(sums) - half, np.diff(sums) + half
    x = np.concatenate([np.tile(np.repeat(v, 8), 4) for v in (rounded_up, -rounded_down)])[None]
    gamma = np.full(x.shape[1], 1.2345)
    arrays = [a.astype(np.float32) for a in (np.sign(x), x, gamma, 0 * gamma)]
    errors = fractions(layer.both(*arrays), *arrays)
    assert max(errors.y.max(), errors.dx.max()) <= AT_LARGE


def hidden_by_gamma(D, size, ones, rng):
    """Return arrays with gamma 1, and dy of a given size, in some entries; elsewhere gamma is 0.

    The mean of the other entries of dy is 0, but a sum in float32 does not find it.
    """
    half = rng.standard_normal((8, D // 2)).astype(np.float32)
    dy = rng.permuted(np.hstack([half, -half]), axis=1)
    dy = np.insert(dy, [0] * ones, size, axis=1)
    x, gamma = rng.standard_normal(dy.shape), (np.arange(D + ones) < ones).astype(float)
    return [a.astype(np.float32) for a in (dy, x, gamma, 0 * gamma)]


@each_layer
@pytest.mark.parametrize("size", [1e-2, 1e-6, 1e-9, 1e-20])
@pytest.mark.parametrize("D", [16, 64, 1000])
def test_gamma_that_hides_dy(layer, D, size):
    """What is left of g is as small as the rounding of dy's mean, or smaller."""
    for ones in (1, 3, D):
        arrays = hidden_by_gamma(D, size, ones, np.random.default_rng(D))
        errors = fractions(layer.both(*arrays), *arrays).dx
        assert errors.max() <= AT_LARGE
        if layer.name in BOUNDED:
            above = bound(layer.name, *arrays).dx
            assert np.all(errors <= above) and above.max() <= 2e-5


@each_layer
@pytest.mark.parametrize("D", [16, 64, 254, 1000])
def test_gamma_that_hides_all_of_dy(layer, D):
    """The scale of dx is 0."""
    arrays = hidden_by_gamma(D, 0, D // 4, np.random.default_rng(D))
    _, scales = promised(*arrays)
    assert not scales.dx.any() and not layer.both(*arrays).dx.any()


@each_layer
@pytest.mark.parametrize("size", [1e6, 1e12])
def test_one_huge_gamma(layer, size):
    """The entry of dy there is its mean."""
    for D in (16, 64, 254):
        arrays = hidden_by_gamma(D, 0, 1, np.random.default_rng(D))
        arrays[2] = np.where(arrays[2] == 0, np.float32(1), np.float32(size))
        assert fractions(layer.both(*arrays), *arrays).dx.max() <= AT_LARGE


FLOATS = (1 + np.arange(2**14) * 2.0**-23).astype(np.float32)


def bulk_rounded_along_x_hat(D):
    """Most g are alike, but gamma makes their rounding errors follow x. It hides the others."""
    v, even = np.float32(1 + 613 * 2.0**-23), np.arange(D) % 2 == 0
    gamma = np.where(even, *adversary.rounded_up_and_down(v, FLOATS))
    x, dy = np.where(even, 1.0, -1), np.full(D, v)
    x[0], gamma[2:4], dy[2:4], x[2:4] = D**0.5, 0, (2.0**23, -(2.0**23)), 0
    return dy, x, gamma


def half_of_g_at_its_mean(D):
    """The same, and gamma hides nothing: the other half of g varies where x_hat is 0."""
    dy, x, gamma = bulk_rounded_along_x_hat(D)
    half = D // 2
    x[half:], gamma[half:], x[0] = 0, 1, (D / 2) ** 0.5
    dy[half:] = dy[0] + 2.1 * np.where(np.arange(D - half) % 2, 1, -1)
    dy[2:4], gamma[2:4] = dy[0], 1
    return dy, x, gamma


def mean_of_x_below_its_spread(D):
    """x is its mean but for two outliers; where x_hat is 0, rounding errors of g * x add up."""
    m, up_and_down = np.float32(0.69), np.arange(D) % 2 == 0
    up, down = adversary.rounded_up_and_down(m, FLOATS)
    x, dy = np.full(D, m), np.where(up_and_down, up, -down)
    x[:2] += np.array([1, -1]) * (D / 2) ** 0.5
    dy[:2] = 0
    return dy, x, np.ones(D)


ROWS = [bulk_rounded_along_x_hat, half_of_g_at_its_mean, mean_of_x_below_its_spread]


@each_layer
@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: rows.__name__)
@pytest.mark.parametrize("D", [256, 1024, 4096, 16384, 60000])
def test_rounding_errors_along_x_hat(layer, rows, D):
    """An outlier of x_hat multiplies what they leave by up to sqrt(D) / 2."""
    dy, x, gamma = rows(min(D, LONGEST.get(layer.name, D)))
    arrays = [a.astype(np.float32) for a in (dy[None], x[None], gamma, 0 * gamma)]
    assert fractions(layer.both(*arrays), *arrays).dx.max() <= AT_LARGE


def lost_additions(threads, vectors):
    """Return x as the kernel holds it, (vectors, threads): its sum of squares loses additions.

    Two outliers are in thread 0. The size of the others is the one that rounding takes most from
    when their squares meet the outliers': in the thread, then at each level of the sum over lanes.
    """
    x, signs = np.zeros((vectors, threads)), np.where(np.arange(vectors) % 2, -1, 1)
    x[:2, 0], total = (1024, -1024), np.float32(2 * 1024**2)
    sizes = 1024 * (0.04 / x.size) ** 0.5 * np.linspace(1, 1.06, 20000, dtype=np.float32)
    group = slice(0, 1)  # the threads whose squares are added next
    while group.start < threads:
        one_by_one = group.start == 0
        count = vectors - 2 if one_by_one else vectors
        squares = np.cumsum(np.tile(sizes**2, (count, 1)), axis=0)[0 if one_by_one else -1]
        squares *= np.float32(max(1, group.start))
        best = np.argmax(squares - (total + squares - total).astype(float))
        x[-count:, group] = sizes[best] * signs[-count:, None]
        for _ in range(count if one_by_one else 1):
            total += squares[best]
        group = slice(group.stop, 2 * group.stop)
    return x


@needs_compiler
def test_rows_built_against_the_order_of_additions():
    """More than a search finds, less than the theorem allows."""
    x = np.resize([*lost_additions(64, 14).ravel(), *[0] * 127], 1023)
    dy = np.where(np.abs(x) < 1024, np.sign(x), 0)
    arrays = [a.astype(np.float32) for a in (dy[None], x[None], np.ones(1023), np.zeros(1023))]
    kernel = fractions(LAYERS["kernel"].both(*arrays), *arrays)
    assert 1e-6 < kernel.dx.max() <= min(EVERY_ROW.dx, bound("kernel", *arrays).dx.max())
    assert fractions(LAYERS["reference"].both(*arrays), *arrays).largest() < AT_LARGE


@each_layer
def test_the_worst_row_that_we_know(layer):
    """Lesson 05 shows it: four values for which the reference's roundings add up to 14.6u."""
    of_x = 6.303144, 0.1245501, -3.9396046, -1.9287711
    of_dy = 0.01895055, 0.98617363, -0.88275182, 0.01948268
    of_gamma = 1.1656603, 1.1656603, 1.1656603, 1.1656616
    x, dy, gamma = np.repeat(np.float32([of_x, of_dy, of_gamma]), (1, 178, 177, 28), axis=1)
    arrays = dy[None], x[None], gamma, 0 * gamma  # (1, 384) twice, (384,) twice
    errors = fractions(layer.both(*arrays), *arrays)
    assert errors.dx.max() <= EVERY_ROW.dx
    assert layer.name != "reference" or errors.dx.max() > 14.5 * U


@each_layer
def test_the_worst_row_for_y_that_we_know(layer):
    of_x, of_gamma = (-0.74648798, 0.23861228, 0.3679912), (1.7429144, 1.7292513, 1.743381)
    of_beta = 0.0029320058, 0.0029284043, 0.003154397
    x, gamma, beta = np.repeat(np.float32([of_x, of_gamma, of_beta]), (113, 141, 2), axis=1)
    arrays = x[None], x[None], gamma, beta  # (1, 256) twice, (256,) twice
    errors = fractions(layer.both(*arrays), *arrays)
    assert errors.y.max() <= EVERY_ROW.y
    assert layer.name != "reference" or errors.y.max() > 6.5 * U


def test_the_theorem_on_the_page_is_above_this_bound():
    """Lesson 05 counts 11u for y and 26u for dx, whatever the row."""
    page = "".join(c.source for c in cells_of(NOTEBOOKS / "05_every_digit.ipynb"))
    of_y, of_dx = (f"is at most ${n}u<" in page and n * 2.0**-24 for n in (11, 26))
    for D in (5, 64, 300, 1024):
        rng = np.random.default_rng(D)
        for offset, gamma in ((0, np.ones(D)), (1e3, rng.uniform(0.5, 2, D)), (3e7, np.ones(D))):
            x = rows_with_outliers(D, rng) + offset
            arrays = 1e4 + rng.standard_normal(x.shape), x, gamma, rng.standard_normal(D)
            above = bound("reference", *(a.astype(np.float32) for a in arrays))
            assert above.y.max() <= of_y and above.dx.max() <= of_dx
