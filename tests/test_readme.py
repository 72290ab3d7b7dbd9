"""README.md: what it shows is what happens, and what it installs is what there is."""

import re
import tomllib

import numpy as np
from execute_notebooks import NOTEBOOKS, all_notebooks
from packaging.requirements import Requirement
from refresh import ROOT

from lnlib import gradcheck, layer_norm_backward, layer_norm_forward
from lnlib.exercises import check

README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def wrong_answer():
    """Return the backward pass on the first screen, and the verdict printed below it."""
    code, verdict = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", README, re.S).groups()
    names = {}
    exec(code, names)
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


def names_on(lines, **platform):
    """Return the names of the packages that pip installs there."""
    found = [Requirement(line) for line in lines]
    platform = {"python_version": "3.13", **platform}
    return {r.name for r in found if r.marker is None or r.marker.evaluate(platform)}


def test_naming_the_gpu_never_fails():
    """Where there are no wheels of CuPy the extra is empty."""
    heavy = {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"}
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("win32", "AMD64")):
        there = {"sys_platform": system, "platform_machine": machine}
        assert names_on(EXTRAS["gpu"], **there) == heavy
        assert names_on(EXTRAS["gpu"], **there, python_version="3.15") == set()
    for system, machine in (("darwin", "arm64"), ("win32", "ARM64"), ("linux", "armv7l")):
        assert not names_on(EXTRAS["gpu"], sys_platform=system, platform_machine=machine)
    assert "jupyterlab" not in names_on(PROJECT["dependencies"], sys_platform="emscripten")


def test_commands_name_extras_that_exist():
    """The first installs all but the tests; the environments for servers do as they say."""
    commands = re.findall(r"pip install -e '?\.(?:\[(.*?)\])?", README)
    assert commands[:2] == ["gpu", "test"] and set(commands) - {""} <= set(EXTRAS)
    assert "-e .[gpu,test]\n" in (ROOT / "environment.yml").read_text("utf-8")
    assert "-e .. " in (ROOT / ".binder/environment.yml").read_text("utf-8")


def test_the_book_has_every_page():
    contents = (NOTEBOOKS / "book/toc.yml").read_text("utf-8")
    patterns = re.findall(r"(?:root|glob|file): \"?([^\"\n]+)", contents)
    pages = [p for pattern in patterns for p in NOTEBOOKS.glob(f"{pattern}.[im]*")]
    assert sorted(pages) == sorted([*all_notebooks(), NOTEBOOKS / "teaching.md"])
    assert re.search(r"sphinx-build -c (\S+) ", README)[1] == "notebooks/book"
