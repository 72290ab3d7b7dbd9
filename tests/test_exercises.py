"""The exercises: lessons and solutions in step, and checkers that are themselves checked."""

import ast
import copy
import functools
import inspect
import itertools
import re
import signal
import threading
import time
import warnings
from collections import Counter

import numpy as np
import pytest
from answers import (
    ASKED,
    LESSONS,
    SOLVED,
    altered,
    expect,
    function,
    named,
    parts,
    spoken,
)
from execute_notebooks import cells_of, solutions
from wrong_answers.functions import WRONG

from lnlib.bugs import BUGS
from lnlib.checker import NotChecked, Score, Terms, edited, edits, guard
from lnlib.checker.describe import Output, close, describe, differing_digits
from lnlib.checker.edits import source_of_function
from lnlib.exercises import EXERCISES, check, inputs
from lnlib.exercises.data import SLIPS
from lnlib.exercises.registry import OF_A_ROW, OF_ALL_ROWS

DIFFICULTY = re.compile(r"^(●○○|●●○|●●●) · (\d+) minutes · about (\d+) lines?$", re.MULTILINE)
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
each_exercise = pytest.mark.parametrize("name", ASKED)


@each_lesson
def test_solutions_are_in_step(path):
    asked, solved = parts(path), parts(solutions(path))
    assert [part.number for part in asked] == [
        f"{int(path.name[:2])}.{k}" for k in range(1, len(asked) + 1)
    ]
    assert [part[:2] for part in solved] == [part[:2] for part in asked] != []
    for one, other in zip(solved, asked):
        heads = [ast.parse(p.source).body[-1] for p in (one, other)]
        assert ast.dump(heads[0].args) == ast.dump(heads[1].args)
        assert ast.get_docstring(heads[0]) == ast.get_docstring(heads[1])
    first = cells_of(solutions(path))[0].source
    assert first.startswith(f"# Solutions to {cells_of(path)[0].source.splitlines()[0][2:]}\n")
    assert f"(../{path.name})" in first
    asking = "".join(cell.source for cell in cells_of(path) if "navigation" not in cell.id)
    assert f"(solutions/{solutions(path).name})" in asking


def test_every_exercise_stands_in_one_lesson():
    assert sorted(part.name for path in LESSONS for part in parts(path)) == sorted(EXERCISES)


@each_exercise
def test_stub_is_not_done_yet_and_solution_is_right(name):
    """nbval lets `check` say so again. Of a kernel the right answer is a twin in NumPy."""
    part, solved, right = ASKED[name], SOLVED[name], EXERCISES[name].right
    assert part.check == solved.check == f"check({name})"
    assert part.verdict.startswith(f"{name}: not done yet")
    assert solved.verdict.startswith(f"{name}: right\n")
    stub = function(name, part.source)
    assert [*inspect.signature(stub).parameters] == [*inspect.signature(right).parameters]
    cell = solved.source[re.search("^def ", solved.source, re.MULTILINE).start() :]
    if "__device__" not in cell and "head" not in cell:
        assert source_of_function(right).strip() == cell.strip()


@each_exercise
def test_text_of_the_exercise_is_true(name):
    part, source = ASKED[name], SOLVED[name].source
    hints = part.text.count("<details><summary>Hint</summary>")
    assert DIFFICULTY.search(part.text) and hints == ("no hints" not in part.text)
    head = ast.parse(source).body[-1]
    first = head.body[1].lineno if ast.get_docstring(head) else 0
    lines = [line for line in source.splitlines()[first - 1 :] if line.strip()]
    yours = Counter(lines) - Counter(part.source.splitlines())
    promised = int(DIFFICULTY.search(part.text)[3])
    assert abs(yours.total() - promised) <= max(1, promised // 4), yours


@pytest.mark.parametrize("name, old, new, words", WRONG)
def test_wrong_answer_is_diagnosed(name, old, new, words):
    expect(check(altered(name, (old, new))), "wrong", words)


def replayed(function, cases, **number):
    """Return a function that gives again what function returned in each case, in their order."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            results = [function(*copy.deepcopy(case), **number) for case in cases.values()]
        except (IndexError, TypeError):  # a single row has no axis 1, repeat takes one axis
            return None
    results = itertools.cycle(results)
    return lambda *arguments: next(results)


AXES = edits(OF_A_ROW + OF_ALL_ROWS)  # mistakes that are made wherever an axis is given
OF_THE_MUSEUM = (*AXES, *(words.format(0.03) for words in SLIPS), *(bug.name for bug in BUGS))


@pytest.mark.parametrize("name", EXERCISES)
def test_each_known_mistake_is_named_for_every_output(name, monkeypatch):
    """A mistake gets its own words for each output that it spoils, and no other words.

    Those of the museum and of AXES need not show: dx alone does not show what dgamma forgets,
    and a single row has no axis 1 to take a wrong mean of.
    """
    task = EXERCISES[name]
    cases = task.cases()
    mistakes = [
        (words.format(0.03), replayed(f, cases, **({"number": 0.03} if "{}" in words else {})))
        for words, f in task.mistakes
    ]
    names = inspect.signature(task.right).parameters
    task = task._replace(
        cases=lambda: cases, expected=replayed(task.expected or task.right, cases),
        mistakes=[
            known if "{}" in known[0] else again
            for known, again in zip(task.mistakes, mistakes) if again[1]
        ],
        prepare=lambda f: lambda *arguments: f(*arguments[: len(names)]), judge=lambda f: None,
    )  # fmt: skip
    monkeypatch.setitem(EXERCISES, name, task)
    for words, mistake in mistakes:
        verdict = mistake and check(named(name, "return mistake({given})", mistake=mistake))
        if not verdict or verdict.status == "right":
            assert words.startswith(OF_THE_MUSEUM), words
            continue
        said = [r for r in verdict.remarks if not re.fullmatch(r"[\w, ]+: right\.", r)]
        several = words in AXES or name == "dx_of_row"  # of one row, some mistakes are the same
        right_words = dict(mistakes) if several else [words]
        assert len(said) == 1 and re.sub(r"^[\w, ]+: ", "", said[0]) in right_words, said


CENTRED = "xc = x - x.mean(-1)[..., None]; r = 1 / np.sqrt(x.var(-1, ddof=1)[..., None] + eps)"
DDOF = "divided by D - 1 (ddof = 1); the layer has D."
PAIRS = "lambda f, v: v[0] if len(v) == 1 else f(f, v[: len(v) // 2]) + f(f, v[len(v) // 2 :])"
EACH_ENTRY = "sum(R(f, x, unit) * step for unit, step in zip(np.eye(x.size), v))"
TOLD = [  # (exercise, what the learner writes, where R is the right answer, what is told)
    ("row_mean", "return np.empty(x[..., :1].shape)", "mean[0, 0, 0]: nan where"),
    ("row_mean", "return np.empty_like(x[..., :1])", "mean[0, 0, 0]: nan where"),
    ("row_mean", "return np.ma.array(R(x), mask=x[..., :1] > 0)", "a masked array, which hides"),
    ("shift_backward", "dy = dy + 1\n    raise ValueError('a\\nb')", "in line 3 of the"),
    ("shift_backward", "total = R(dy); dy[...] = 0; return total", "right, but it changes dy in"),
    ("prenorm_backward", "r = R(dz, cache); cache.x_hat[...] = 0; return r", "it changes cache"),
    ("mean_backward", "return R(dm, D) if D == 5 else None", "nothing for D = 7: is a return"),
    ("mean_backward", "return R(dm, D) * (1 if D == 5 else 2)", "(*inputs(mean_backward, 2))"),
    ("dx_of_row", "g = gamma * dy; rstd * (g - g.mean())", "not done yet It returns nothing"),
    ("dx_of_row", "g = R({given}); return g * (1 + 1e-5 * x_hat)", "the largest error is at dx["),
    ("backward_by_hand", "return ...", "not done yet"),
    ("backward_by_hand", "return None", "not done yet"),
    ("backward_by_hand", "return ..., ..., ...", "not done yet"),
    ("backward_by_hand", "return None, ..., None", "not done yet"),
    ("seconds_at_least", "return np.stack(R({given}))", "seconds_at_least: right Tried"),
    ("columns_of", "return tuple(R({given}))", "columns_of: right Tried"),
    ("prenorm_backward", "return 3 * cache.gamma * dz, *R({given})[1:]", "3 * cache.gamma * dz."),
    ("dual_derivative", "return 2 * R({given})", "right, but for a factor: 2 times what is"),
    ("dual_derivative", "return f(x + 1e-30j * v).imag / 1e-30", "other numbers than Duals, as in"),
    ("dual_derivative", f"return {EACH_ENTRY}", "f is called 6 times. One pass is asked"),
    ("cost_of_one_pass", "f, n, m = R({given}); return f + 1, n + D % 256, m", "s(2048, 256, 4)"),
    ("cost_of_one_pass", "return [np.uint8(3), *R({given})[1:]]", "counted, moved: right."),
    ("forward_by_hand", f"{CENTRED}; return xc, xc * r, r[..., 0]", f"x_hat: {DDOF}"),
    ("forward_by_hand", f"{CENTRED}; return beta, xc, r[..., 0]", f"{DDOF} Also: an axis of"),
    ("compensated_sum", f"f = {PAIRS}; return f(f, values)", "as without compensation: carry"),
    ("rms_forward", "return R(x, gamma, 1e-12)", "y, x_hat, rstd: eps is not the argument but"),
    ("rms_forward", "return R(x, gamma, 2e-4)", "not the argument but fixed at 0.0002."),
]  # fmt: skip


@pytest.mark.parametrize("name, body, words", TOLD)
def test_what_is_told(name, body, words):
    verdict = check(named(name, body, np=np, R=EXERCISES[name].right))
    assert words in spoken(verdict)


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class UnprintableNotImplemented(Unprintable, NotImplementedError):
    pass


class NoException(BaseException):
    pass


class NotAnArray:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")


HOSTILE = {
    "return 1 / 0": "ZeroDivisionError in line 2 of the function: division by zero",
    "raise Unprintable": "Unprintable in line 2 of the function.",
    "raise SystemExit(3)": "SystemExit",
    "raise NoException('out')": "NoException in line 2 of the function: out",
    "raise NotImplementedError": "not done yet",
    "raise UnprintableNotImplemented": "not done yet",
    "return undefined_name": "NameError",
    "raise ValueError(object())": "<object object>",
    "import warnings; warnings.warn('loud')": "not done yet",
    "np.seterr(all='raise'); return np.float64(1e300) * 1e300": "FloatingPointError",
    "np.seterr(all='raise'); return 1e300": "",
    **dict.fromkeys(("np.abs = None; return 0", "yield 1"), ""),
    "return (lambda f: f(f))(lambda f: f(f))": "RecursionError",
    **{f"return {value}": "" for value in (
        "NotAnArray()", "'text'", "{{}}", "[]", "[[1, 2], [3]]", "(1, 2, 3, 4, 5)", "[None] * 7",
        "10**400", "np.datetime64('2026-01-01')", "np.zeros((0, 3))", "np.nan", "1j", "True",
        "print", "np.ma.masked",
    )},
    "[a.fill(7) for a in [{given}] if isinstance(a, np.ndarray)]; return ({given})": "",
}  # fmt: skip
ONE_OF_EACH_KIND = {  # how what a learner wrote becomes a function of the inputs -> an exercise
    task.prepare and task.prepare.__qualname__: name for name, task in EXERCISES.items()
}


@pytest.mark.parametrize("name", ["backward_by_hand", *ONE_OF_EACH_KIND.values()])
@pytest.mark.parametrize("body", HOSTILE)
def test_check_never_raises(name, body, monkeypatch):
    if name != "backward_by_hand":  # these kinds take long: the first input and the last
        task = EXERCISES[name]
        cases = list(task.cases().items())
        few = task._replace(cases=lambda: dict(cases[:1] + cases[-1:]), mistakes=[])
        monkeypatch.setitem(EXERCISES, name, few)
    names = {"np": np, "NotAnArray": NotAnArray, "NoException": NoException}
    names |= {e.__name__: e for e in (Unprintable, UnprintableNotImplemented)}
    answer, absolute, state = named(name, body, **names), np.abs, np.geterr()
    verdict = check(answer)
    assert verdict.status == ("not done yet" if HOSTILE[body] == "not done yet" else "wrong")
    assert HOSTILE[body] in spoken(verdict)
    assert name != "backward_by_hand" or repr(check(answer)) == repr(verdict)
    assert not re.search(r"0x[0-9a-f]{6}", repr(verdict))
    assert np.abs is absolute and np.geterr() == state


def test_check_wants_the_function_and_its_arguments():
    for name, task in EXERCISES.items():
        takes, other = inspect.signature(task.right).parameters, {}
        exec(f"def {name}({'' if takes else 'something'}): return 0", other)
        verdict = check(other[name])
        assert verdict.status == "wrong" and "It must take (" in repr(verdict)
        many = named(name, "return 0")
        assert check(functools.wraps(many)(lambda *a: None)).status == "not done yet"


def test_callables_that_pretend_to_be_functions():
    class Answer:
        __name__ = "row_mean"
        __code__ = 5

        def __call__(self, x):
            raise ValueError("here")

    assert "It stops with ValueError: here" in spoken(check(Answer()))
    Answer.__call__ = lambda self, x: None
    assert check(Answer()).status == "not done yet"


def test_what_comes_from_the_page_is_named():
    page = {"D": 8, "ones": np.ones((8, 8)), "mean": 3.0, "np": np}
    words = "from outside. Take sizes and values from the arguments."
    small = named("centre_backward", "return dz - dz.sum(axis=-1, keepdims=True) / D", **page)
    assert f"It uses D {words}" in spoken(check(small))
    stops = named("centre_backward", "return dz - dz @ ones / D", **page)
    assert f"It uses ones, D {words}" in spoken(check(stops))
    own = named("centre_backward", "D = dz.shape[-1]; return dz - dz.mean() / D", **page)
    assert "from outside" not in spoken(check(own))


def test_an_error_state_that_is_left_behind_does_no_harm():
    """Known mistakes overflow here; they are found although the learner's overflows raise."""
    words = "not scaled: squares leave the range. Divide by a power of two."
    mistake = dict(EXERCISES["robust_x_hat"].mistakes)[words]
    answer = named("robust_x_hat", "y = f(x); np.seterr(all='raise'); return y", f=mistake, np=np)
    assert f"x_hat: {words}" in spoken(check(answer))


def test_an_interrupt_goes_through():
    with pytest.raises(KeyboardInterrupt):
        check(named("row_mean", "raise KeyboardInterrupt"))


def test_an_endless_loop_is_stopped(monkeypatch):
    monkeypatch.setattr(guard, "LIMIT", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    verdict = check(named("mean_backward", "while D == 7: pass"))
    assert verdict.status == "wrong"
    assert "after 0.2 seconds: does one of its loops never end?" in spoken(verdict)
    assert "inputs(mean_backward, 2)" in spoken(verdict)
    assert signal.getsignal(signal.SIGALRM) is before
    monkeypatch.undo()
    assert check(EXERCISES["mean_backward"].right).status == "right"
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)  # no alarm is left behind


def test_where_there_is_no_alarm_the_text_says_how_to_interrupt(monkeypatch, capsys):
    monkeypatch.setattr(guard, "LIMIT", 0.05)
    answer = named("row_mean", "time.sleep(0.15)", time=time)
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(check(answer)))
    thread.start()
    thread.join()
    assert verdicts[0].status == "not done yet"
    assert "Still running after 0.05 s. In Jupyter, ■" in capsys.readouterr().out


def test_the_call_that_fails_can_be_run_again():
    """A verdict names the first input that is wrong, by its numbers or by its place."""

    def columns_of(thread, threads, width, D):
        right = EXERCISES["columns_of"].right(thread, threads, width, D)
        return right[: 3 if (thread, D) == (57, 1000) else None]

    call = re.search(r"Run it again: (columns_of\(.*\))$", spoken(check(columns_of)))[1]
    assert eval(call) != EXERCISES["columns_of"].right(57, 64, 4, 1000)

    task = EXERCISES["rms_forward_blocked"].right
    told = repr(check(named("rms_forward_blocked", "return f({given})[::-1]", f=task)))
    call = (
        "from lnlib.exercises import inputs; rms_forward_blocked(*inputs(rms_forward_blocked, 1))"
    )
    assert told.splitlines()[-1] == f"  Run it again: {call}"  # in one line, which can be copied
    assert inputs("mean_backward", 2)[1] == 7
    inputs("mean_backward", 2)[0][...] = 0
    assert np.all(inputs("mean_backward", 2)[0] != 0)


def test_an_input_that_has_no_call_is_named():
    """Who writes a check must know which of the layers stops it, unless the first does."""
    stops = "dx, dgamma = backward({}); return bool(dgamma.ndim == 1 or 1 / (dgamma.ndim - {}))"
    given = "*forward(np.ones((3, 4)), np.ones(4), 0.1), np.ones(4)"
    told = repr(check(named("rms_check", stops.replace("{}", given, 1).replace("{}", "2"), np=np)))
    assert "ZeroDivisionError" in told and "It stops at the input: dgamma not summed." in told
    assert "at the input" not in repr(check(named("rms_check", "return 1 / 0")))


def test_the_call_to_run_again_is_of_the_case_that_is_named():
    """Numbers are wrong in every case and the shape in a later one: the shape is told, and called.

    Of two outputs the call is that of the case which comes first.
    """
    task = EXERCISES["rms_forward_blocked"]
    labels = list(task.cases())
    wrong = "y, rstd = f({given}); return ySLIP, rstd[:7] if rows == 3 else rstd + 1"
    for slip, number in ("", labels.index("12 rows in blocks of 3") + 1), (" + 1", 1):
        told = repr(check(named("rms_forward_blocked", wrong.replace("SLIP", slip), f=task.right)))
        assert f"rstd: for {labels[1]}, shape (7, 1) where (12, 1) is asked" in told
        assert told.endswith(f"inputs(rms_forward_blocked, {number}))")


def test_a_judge_may_give_a_score_or_decline(monkeypatch):
    task = EXERCISES["row_mean"]

    def said_with(judge):
        monkeypatch.setitem(EXERCISES, "row_mean", task._replace(judge=judge))
        return check(task.right)

    verdict = said_with(lambda function: Score("Reads x once."))
    assert verdict.status == "right" and verdict.remarks[1] == "Reads x once."
    assert said_with(lambda function: "It reads x twice.").status == "wrong"

    def decline(function):
        raise NotChecked("No compiler here.")

    assert said_with(decline) == ("not checked", "row_mean", ("No compiler here.",))
    assert "ZeroDivisionError" in spoken(said_with(lambda function: 1 / 0))


def double(x):
    return 2 * x + 1


def test_tables_of_edits_are_read_strictly():
    table = """
    2 * x => x  # not doubled.
    2 => 3
    1 => 4
        two
        things.
    + 1 =>  # two things.
    """
    ways = edits(table)
    assert list(ways) == ["not doubled.", "two things."]
    assert [len(w) for w in ways.values()] == [1, 2]
    assert [edited(double, way)(5) for way in ways["two things."]] == [19, 10]
    with pytest.raises(ValueError, match="has no '3'"):
        edited(double, (("3", "4"),))
    for broken in ("    2 -> 3\n        words", "    2 => 3\n    words", "\n    2 => 3\n"):
        with pytest.raises(ValueError, match="not an entry"):
            edits(f"\n{broken}\n    ")


@pytest.mark.parametrize(
    "source, words",
    [
        ("name = 3", "int: wrong Give check the function itself"),
        ("name = lambda x: x", "No exercise has a function of this name. Define it with def"),
        ("def row_mean(*, x): return x", "It must take (x), and takes (*, x)."),
        ("def backward_by_hnad(): pass", "Is it backward_by_hand?"),
        ("def dx_of_row(x_hat, dy, rstd, gamma): ...", "It must take (dy, x_hat, rstd, gamma)"),
    ],
)
def test_check_of_something_else(source, words):
    exec(source, names := {})
    expect(check([*names.values()][-1]), "wrong", words)


@np.errstate(invalid="ignore")
def test_close_looks_at_each_row_by_itself():
    rows, inf = np.array([[1e9, 2e9], [1.0, 2.0]]), np.array([np.inf, np.nan, 0.0])
    for same in (rows, rows * (1 + 1e-12)), (rows, rows + [[0, 1e-3], [0, 0]]), (inf, inf):
        assert close(*same[::-1], 1e-9)
    other = (rows, rows + [[0, 0], [0, 1e-3]]), (rows, rows[:1]), (rows < 0, rows > 0)
    for right, wrong in (*other, (inf, np.array([np.inf, 0, 0])), (inf, np.array([1, np.nan, 0]))):
        assert not close(wrong, right, 1e-9)


@pytest.mark.parametrize(
    "mine, right, words",
    [(1e-20, 1.0, "0 where 1"), (2.0, 1.0, "2 where 1"), (1 + 1e-7, 1.0, "1.0000001 where 1"),
     (np.nan, 1.0, "nan where 1"), (np.float64(1), np.bool_(False), "True where False")],
)  # fmt: skip
def test_numbers_are_written_so_that_they_differ(mine, right, words):
    assert differing_digits(mine, right) == f"{words} is right."


def test_what_a_cache_holds_must_be_seen():
    def add_rms_norm():
        forward, backward = EXERCISES["add_rms_norm"].right()

        def hiding(*given):
            y, z, cache = forward(*given)
            return y, z, lambda: cache

        return hiding, lambda dy, dz, cache: backward(dy, dz, cache())

    assert "the cache holds something that is no array" in spoken(check(add_rms_norm))


@pytest.mark.parametrize("cache, advice", [("(z, rstd", False), ("(z.copy(), rstd", True)])
def test_a_large_cache_is_right_but_fewer_values_will_do(cache, advice):
    add_rms_norm = edited(EXERCISES["add_rms_norm"].right, (("(z, rstd", cache),))
    verdict = check(add_rms_norm)
    assert verdict.status == "right" and ("Fewer will do." in str(verdict)) == advice


DIFFERS = {  # what backward_by_hand returns, where dx, a, b are right -> what is told
    "-dx, a, b": "dx: right, but for its sign.",
    "3 * dx, a, b": "dx: right, but for a factor: 3 times",
    "(1 + 1e-7) * dx, a, b": "factor: 1.0000001 times what is asked",
    "dx * a.size, a, b": "dx: right, but for a factor: D times",
    "dx * (a.size + 1), a, b": "6 for ordinary rows, 6 for flat rows, 8 for",
    "dx * np.linspace(1, 1.3, N).reshape(rstd.shape), a, b": "in each row, from 1 to 1.3: rstd",
    "0 * dx, a, b": "dx: zero everywhere",
    "dx + 0j, a, b": "right, but complex128; the input is float64",
    "dx.astype(np.float32), a, b": "Was something rounded to float32",
    "dx, b, a": "dgamma: this is what dbeta should be; the order is dx, dgamma, dbeta. "
        "dbeta: this is what dgamma should be; the order is dx, dgamma, dbeta.",
    "dx + dx**2, b, b": "dgamma: dgamma without x_hat.",
    "dx[None], a, b": "dx: shape (1, 2, 3, 5) where (2, 3, 5) is asked: an axis of",
    "dx, a[None], b": "dgamma: shape (1, 5) where (5,) is asked: an axis",
    "dx, a, b + np.inf": "dbeta: for ordinary rows (shape (5,)) the largest error is at dbeta[0]",
    "dx + dx**2, a, b": "dgamma, dbeta: right.",
    "None, a, b": "dx: not done yet. dgamma, dbeta: right.",
    "None, -a, b": "dgamma: right, but for its sign. dx: not done",
    "np.where(dx == dx[1, 1, 3], np.nan, dx), a, b": "dx[1, 1, 3]: nan where",
    "dx + 1e-6 * (dx == dx[1, 1, 3]), a, b": "the largest error is at dx[1, 1, 3]",
    "g - 0.5 * g.mean(axis=-1, keepdims=True), a, b": "yours is g - 0.5 * mean(g). Not right in "
        "this: the factor of mean(g), what stands in front. Missing: x_hat * mean(g * x_hat).",
}  # fmt: skip


@pytest.mark.parametrize("returned", DIFFERS)
def test_verdicts_say_what_differs(returned):
    """Shapes, signs, factors, types, NaN, parts: what is not a known mistake is described."""
    body = f"(dx, a, b), g, N = R({{given}}), gamma * dy, rstd.size; return {returned}"
    answer = named("backward_by_hand", body, np=np, R=EXERCISES["backward_by_hand"].right)
    assert DIFFERS[returned] in spoken(check(answer))


def test_a_sum_that_lost_digits_is_no_other_sum():
    a, b = 1e8 + np.array([1.0, 2.0, -5.0]), np.full(3, 1e8)
    mine, right = a - b + [1e-3, -2e-3, 0], a - b
    terms = Terms("1", "a; b")
    output = Output("d", [mine], [right], ["three"], 1e-9)
    text = describe(output, terms, [{"a": a, "b": b}])
    assert text.startswith("for three (shape (3,)) the largest error is at d[1]")


def test_sums_of_up_to_four_terms_are_found():
    rows, terms = np.random.default_rng(0).standard_normal((5, 9)), Terms("1", "a; b; c; d; e")
    for count, words in ((4, "yours is a + b + c + d. Not"), (5, "the largest error")):
        output = Output("s", [rows[:count].sum(axis=0)], [rows[0]], ["nine"], 1e-9)
        assert words in describe(output, terms, [dict(zip("abcde", rows))])
