"""README.md: what it shows is what happens, and what it counts is there."""

import re
import tomllib

import numpy as np
from execute_notebooks import NOTEBOOKS, all_notebooks
from execute_notebooks import lessons as lesson_pages
from packaging.requirements import Requirement
from test_texts import ROOT, caught, number

from lnlib import gradcheck, layer_norm_backward, layer_norm_forward
from lnlib.bugs import BUGS
from lnlib.exercises import check

README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIRED = [Requirement(line) for line in PROJECT["dependencies"]]


def wrong_answer():
    """Return the backward pass on the first screen, and the verdict printed below it."""
    code, verdict = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", README, re.S).groups()
    names = {}
    exec(code, names)
    assert len(code.splitlines()) == 5
    return names["backward_by_hand"], verdict


def test_the_verdict_is_what_check_prints():
    answer, verdict = wrong_answer()
    assert f"{check(answer)}\n" == verdict


def test_the_wrong_answer_is_as_treacherous_as_it_says():
    answer, _ = wrong_answer()
    rng = np.random.default_rng(seed=1)
    x, dy = 5 + 3 * rng.standard_normal((2, 2, 3, 8))  # (2, 3, 8) each
    gamma, beta = rng.uniform(0.5, 2, (2, 8))
    layer = layer_norm_forward, lambda dy, cache: answer(dy, *cache)
    assert gradcheck(*layer, x, np.ones(8), beta).passed
    assert not gradcheck(*layer, x, gamma, beta).passed
    _, cache = layer_norm_forward(x, gamma, beta)
    wrong, right = answer(dy, *cache)[0], layer_norm_backward(dy, cache)[0]
    assert np.all(np.sum(wrong * right, axis=-1) > 0)  # downhill in every row


def test_times_add_up():
    rows = re.findall(r"^\| (?:\*?\d\d\*? )?\| .* \| (\d+) \| (\d+) \|$", README, flags=re.M)
    *lessons, total = np.array(rows, dtype=int)
    assert len(lessons) == len(lesson_pages()) and np.array_equal(total, np.sum(lessons, axis=0))
    hours = re.search(r"about (\d+) hours to read,\s+(\d+) with the exercises", README).groups()
    assert [*map(int, hours)] == [*np.round(total / 60)]


def test_the_comparison_counts_the_checks():
    pattern = r"(\w+) checks that catch every bug of a museum, (\w+) that do not"
    told = [number(word) for word in re.search(pattern, README).groups()]
    complete = [count == len(BUGS) for count in caught().values()]
    assert told == [sum(complete), len(complete) - sum(complete)]


def names_on(**platform):
    """Return the names of the packages that pip installs there."""
    return {r.name for r in REQUIRED if r.marker is None or r.marker.evaluate(platform)}


def test_the_lighter_installation_is_the_default_without_the_gpu():
    packages = re.search(r"pip install (numpy .*?) &&", README)[1].split()
    heavy = {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"}
    assert set(packages) == {r.name for r in REQUIRED} - heavy
    for_tests = re.search(r"For the tests add `([^`]*)`", README)[1].split()
    extra = PROJECT["optional-dependencies"]["test"]
    assert set(for_tests) == {Requirement(line).name for line in extra}
    for there in (
        {"sys_platform": "linux", "platform_machine": "x86_64"},
        {"sys_platform": "linux", "platform_machine": "aarch64"},
        {"sys_platform": "win32", "platform_machine": "AMD64"},
    ):
        assert names_on(**there) == {*packages, *heavy}
    for there in (
        {"sys_platform": "darwin", "platform_machine": "arm64"},
        {"sys_platform": "darwin", "platform_machine": "x86_64"},
        {"sys_platform": "win32", "platform_machine": "ARM64"},
        {"sys_platform": "linux", "platform_machine": "armv7l"},
        {"sys_platform": "emscripten", "platform_machine": "wasm32"},
    ):
        assert names_on(**there) == set(packages)


def test_the_book_has_every_page():
    contents = (NOTEBOOKS / "book/toc.yml").read_text("utf-8")
    patterns = re.findall(r"(?:root|glob|file): (\S+)$", contents, flags=re.M)
    pages = [p for pattern in patterns for p in NOTEBOOKS.glob(f"{pattern}.[im]*")]
    assert sorted(pages) == sorted([*all_notebooks(), NOTEBOOKS / "teaching.md"])
    assert re.search(r"sphinx-build -c (\S+) ", README)[1] == "notebooks/book"
