"""README.md and the index: what they show is what happens, and what they install is there."""

import re
import tomllib

import numpy as np
from draw_one_page import CODE
from execute_notebooks import INDEX, NOTEBOOKS, all_notebooks, cells_of, lessons
from minutes import size
from packaging.requirements import Requirement
from refresh import ROOT

from lnlib import gradcheck, layer_norm_backward, layer_norm_forward
from lnlib.exercises import check

README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
INDEX_CELLS = cells_of(INDEX)
INDEX_TEXT = "\n".join(c.source for c in INDEX_CELLS if c.cell_type == "markdown")
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
    assert patterns[0] == "index"  # the first page
    assert re.search(r"sphinx-build -c (\S+) ", README)[1] == "notebooks/book"


# ---- The index, the page that a link lands on ----


def test_six_lines_are_the_posters():
    first = next(cell.source for cell in INDEX_CELLS if cell.cell_type == "code")
    lines = [re.sub(r"  # .*", "", line).strip() for line in first.splitlines()]
    assert lines[2:8] == CODE.splitlines()
    assert "import" not in first  # it can be copied as it is


def test_formula_is_the_readmes():
    formula = re.search(r"^dx = .*?\\bigr\)", README, flags=re.M)[0]
    assert formula in INDEX_TEXT


def test_it_has_a_door_to_each_lesson():
    doors = re.findall(r"^\| \[(\d\d)\]\((.*?)\) \|", INDEX_TEXT, flags=re.M)
    assert {path.name for path in lessons()} <= {name for _, name in doors}
    assert all(name.startswith(number) for number, name in doors)


def test_it_takes_about_five_minutes():
    """Up to its list of lessons; the formula of minutes does not count its one figure."""
    assert 3 <= size(INDEX).reading <= 5
    assert re.search(r"The whole page, .*, takes about five\.", README)
    name = INDEX_CELLS[0].source.splitlines()[0].removeprefix("# ")
    assert f"takes one minute: it is the first screen of [{name}](notebooks/{INDEX.name})" in README


def test_code_can_be_read_on_a_phone():
    lines = [line for c in INDEX_CELLS if c.cell_type == "code" for line in c.source.splitlines()]
    assert max(map(len, lines)) <= 60
