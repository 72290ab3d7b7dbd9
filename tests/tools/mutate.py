"""Score lesson 03's checks on wrong backward passes made by machine: python tests/tools/mutate.py

Writes notebooks/recorded/mutants.json, in some minutes on one core. Two backward passes are
mutated: "formula", which is lnlib.textbook.backward_means, and "walk", the chain rule node by node,
below. Each mutant differs in one place of the syntax tree: an operator, a sign, an axis, a factor,
a term that is dropped, a range that is short by one, a variable in place of another. Not scored is
what stops with an error or returns another shape, what is right after all, and what returns the
same as a mutant before. "Right" and "the same" are decided in decimals of 60 digits, for two
inputs. Then every check of lesson 03 judges every mutant; the checks are defined by the lesson's
cells, which are run for it. Their cost is counted in forward passes.
"""

import argparse
import ast
import decimal
import inspect
import json
import platform
import re
import textwrap
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from execute_notebooks import NOTEBOOKS, cells_of

from lnlib import textbook

LESSON = NOTEBOOKS / "03_gradient_check.ipynb"
RECORD = NOTEBOOKS / "recorded" / "mutants.json"
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
FACTORS = "* 2", "/ 2", "** 2", "* dy.shape[-1]", "/ dy.shape[-1]"
FACTORS += ("* dy.shape[-1] / (dy.shape[-1] - 1)",)
AXES = "-1", "0", "1", "None", "rows"
DIGITS = 60
SEEDS = 3, 4, 5  # the first is the lesson's own
KEPT = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assign


def walk(dy, cache, eps=1e-5):
    x_hat, rstd, gamma = cache
    rows = tuple(range(dy.ndim - 1))
    D = dy.shape[-1]
    xc = x_hat / rstd
    std = np.sqrt((xc * xc).mean(axis=-1, keepdims=True) + eps)
    dbeta = dy.sum(axis=rows)
    dgamma = (dy * x_hat).sum(axis=rows)
    dx_hat = dy * gamma
    drstd = (dx_hat * xc).sum(axis=-1, keepdims=True)
    dstd = -drstd / (std * std)
    dvar = dstd / (2 * std)
    dxc = dx_hat / std + 2 * xc * dvar / D
    dmean = -dxc.sum(axis=-1, keepdims=True)
    dx = dxc + dmean / D
    return dx, dgamma, dbeta


FORMS = {"formula": textbook.backward_means, "walk": walk}


class Mutant(NamedTuple):
    """One backward pass with one change: in which line of its form, and what stands there."""

    form: str
    kind: str
    line: int
    new: str
    source: str


def mutants(form):
    """Return all mutants of a form, in the order of its lines."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(FORMS[form])))
    known, found = [], []
    for number, statement in enumerate(tree.body[0].body, start=1):  # each is one line
        names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
        if isinstance(statement, (ast.Assign, ast.Return)) and not {"cache", "range"} & set(names):
            old = ast.unparse(statement)
            for parent, field, place, node in list(_expressions(statement)):
                for kind, new in _changes(parent, node, known):
                    _put(parent, field, place, ast.parse(new, mode="eval").body)
                    line = ast.unparse(statement)
                    if line != old:
                        found.append(Mutant(form, kind, number, line, ast.unparse(tree)))
                _put(parent, field, place, node)
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            added = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
            known += [name for name in added if name not in ("rows", "D")]
        known = known or ["dy"]
    return found


def _expressions(statement):
    """Yield (parent, field, place in a list or None, node) for each expression of a statement."""
    for parent in ast.walk(statement):
        for field, value in ast.iter_fields(parent):
            if field in ("targets", "slice", "ctx"):
                continue
            for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.expr):
                    yield parent, field, place, node


def _put(parent, field, place, node):
    if place is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[place] = node


def _changes(parent, node, known):
    """Yield (kind, new expression) for what may stand in place of node."""
    text = ast.unparse(node)
    if isinstance(parent, ast.keyword):
        new = AXES if parent.arg == "axis" else ()
        yield from (("axis", axis) for axis in new if axis != text)
    elif not (isinstance(node, (ast.Constant, ast.Tuple, ast.Attribute)) or text in ("np", "D")):
        if isinstance(node, ast.Name) and (text in known or isinstance(parent, ast.Attribute)):
            yield from (("variable", name) for name in known if name != text)
        if isinstance(node, ast.BinOp):
            yield from _operations(node)
        negative = isinstance(node, ast.UnaryOp)
        yield "sign", ast.unparse(node.operand) if negative else f"-({text})"
        yield from (("factor", f"({text}) {factor}") for factor in FACTORS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _sums(node)


def _operations(node):
    """Yield what may stand in place of an operation with two sides."""
    left, right = (f"({ast.unparse(side)})" for side in (node.left, node.right))
    signs = [sign for op, sign in OPERATORS.items() if not isinstance(node.op, op)]
    yield from (("operator", f"{left} {sign} {right}") for sign in signs)
    yield from (("dropped", side) for side in (left, right))
    if isinstance(node.op, (ast.Sub, ast.Div)):
        yield "order", f"{right} {OPERATORS[type(node.op)]} {left}"


def _sums(node):
    """Yield what may stand in place of the call of a sum or a mean."""
    of, name = f"({ast.unparse(node.func.value)})", node.func.attr
    if other := {"sum": "mean", "mean": "sum"}.get(name):
        options = ", ".join(ast.unparse(option) for option in node.keywords)
        yield "mean or sum", f"{of}.{other}({options})"
        short = "[1:]" if "axis=rows" in options else "[..., 1:]"
        yield "range", f"{of}{short}.{name}({options})"
        yield "dropped", of


def function(source):
    """Return the function that a source defines."""
    names = {"np": np}
    exec(source, names)
    return next(value for name, value in names.items() if inspect.isfunction(value))


def decimals(seed, *shape):
    """Return dy and a cache, arrays of Decimals, and eps; the rows belong to a real x."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        numbers = rng.integers(-(10**6), 10**6, shape) * 2 + 1
        return np.vectorize(lambda n: Decimal(int(n)) / 10**6, otypes=[object])(numbers)

    eps, x, dy, gamma = Decimal("1e-5"), draw(*shape), draw(*shape), draw(shape[-1])
    xc = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((xc * xc).mean(axis=-1, keepdims=True) + eps)
    return dy, (xc * rstd, rstd, gamma), eps


def results(backward, inputs):
    """Return what a backward pass returns for decimal inputs, to half of the digits, as text."""
    dy, cache, eps = inputs
    options = {"eps": eps} if "eps" in inspect.signature(backward).parameters else {}
    try:
        returned = backward(dy, cache, **options)
    except decimal.DecimalException:  # division by zero
        return "not finite"
    return [[_rounded(number) for number in np.ravel(array)] for array in returned]


def _rounded(number):
    """Return a Decimal to half of the digits behind the point: what is 0 but for rounding is 0."""
    return f"{number:.{DIGITS // 2}f}".replace("-0." + "0" * (DIGITS // 2), "0")


def classes():
    """Return the distinct wrong mutants, and how many others there were of each sort.

    Numbers are compared to 30 digits behind the point; rounding to 60 digits is far below that.
    """
    counts, distinct, seen = {}, [], set()
    with decimal.localcontext(prec=DIGITS):
        points = [decimals(1, 2, 3, 5), decimals(2, 3, 2, 4)]
        right = str([results(textbook.backward_means, point) for point in points])
        for mutant in (mutant for form in FORMS for mutant in mutants(form)):
            backward = function(mutant.source)
            what = "distinct and wrong"
            try:
                shapes = [[np.shape(a) for a in _floats(backward, point)] for point in points]
                found = str([results(backward, point) for point in points])
            except (TypeError, ValueError, IndexError):  # shapes that do not fit
                what = "stop with an error"
            else:
                expected = [[point[0].shape, *2 * [point[0].shape[-1:]]] for point in points]
                if shapes != expected:
                    what = "return another shape"
                elif found == right:
                    what = "right after all"
                elif found in seen:
                    what = "the same as another"
                else:
                    distinct.append(mutant)
                    seen.add(found)
            counts[what] = counts.get(what, 0) + 1
    return distinct, counts


def _floats(backward, point):
    dy, cache, _ = point
    with np.errstate(all="ignore"):
        return backward(dy.astype(float), tuple(array.astype(float) for array in cache))


def lesson(seed):
    """Run what lesson 03 defines, with another seed for its data; return the names.

    Statements that print, draw or assert are left out.
    """
    names = {}
    for cell in cells_of(LESSON):
        if cell.cell_type == "code" and "checks" not in names:
            tree = ast.parse(cell.source.replace("default_rng(seed=3)", f"default_rng({seed})"))
            kept = [node for node in tree.body if isinstance(node, KEPT)]
            exec(compile(ast.Module(kept, []), LESSON.name, "exec"), names)
    return names


def counted(names):
    """Return how often each check calls the layer, forward or backward, for the right gradient."""
    calls = []

    def counting(function):
        def call(*arguments):
            calls.append(1)
            return function(*arguments)

        return call

    right = names["layer_norm_forward"], names["layer_norm_backward"]
    names["layer_norm_forward"] = counting(right[0])
    passes = {}
    for name, check in names["checks"].items():
        calls.clear()
        assert check(counting(right[1]))
        passes[name] = len(calls)
    names["layer_norm_forward"] = right[0]
    return passes


def caught(check, backward):
    """Return "1" if a check does not pass a backward pass, else "0"."""
    with np.errstate(all="ignore"):
        return str(int(not check(backward)))


def verdicts(seed):
    """Return, for each check, what it says of each mutant, and what the check costs in passes."""
    names = lesson(seed)
    functions = [function(mutant.source) for mutant in classes()[0]]
    columns = [[caught(c, f) for f in functions] for c in names["checks"].values()]
    return columns, counted(names)


def record(day):
    """Let every check judge every mutant, for several seeds; return what is stored."""
    distinct, counts = classes()
    with ProcessPoolExecutor() as pool:
        (columns, passes), *others = pool.map(verdicts, SEEDS)
    scores = [[column.count("1") for column in each] for each, _ in [(columns, passes), *others]]
    sources = {form: ast.unparse(ast.parse(inspect.getsource(FORMS[form]))) for form in FORMS}
    rows = ["".join(row) for row in zip(*columns)]
    return {
        "made by": "python tests/tools/mutate.py",
        "date": day,
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "sources": {form: source.splitlines() for form, source in sources.items()},
        "counts": {"made": sum(counts.values())} | counts,
        "checks": list(passes),
        "passes": list(passes.values()),
        "seeds": SEEDS,
        "caught": scores,
        "mutants": [[m.form, m.kind, m.line, m.new, row] for m, row in zip(distinct, rows)],
    }


def written(stored):
    """Return the text of the file, with a line for each mutant, check and line of a source."""
    text = json.dumps(stored, indent=1)
    return re.sub(r"\n {3,}", " ", re.sub(r"\n {2}\]", " ]", text)) + "\n"


def main():
    how = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=how).parse_args()
    RECORD.write_text(written(record(str(date.today()))), "utf-8")


if __name__ == "__main__":
    main()
