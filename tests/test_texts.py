"""Texts: what is generated is up to date, and nothing else counts what code can count."""

import re

from execute_notebooks import REFRESH, all_notebooks, cells_of, keep_measured
from nbformat import from_dict
from refresh import README, ROOT, code_of, out_of_date

from lnlib.bugs import BUGS

TEXTS = {path: path.read_text("utf-8") for path in (README, ROOT / "notebooks/teaching.md")}
for path in all_notebooks():
    words = [cell.source for cell in cells_of(path) if cell.cell_type == "markdown"]
    TEXTS[path] = "\n".join([*words, *(cell.metadata.get("alt", "") for cell in cells_of(path))])


def test_nothing_generated_is_out_of_date():
    names = [str(path.relative_to(ROOT)) for path in out_of_date()]
    assert not names, f"{REFRESH}: it will correct {', '.join(names)}"


def test_prose_does_not_count_the_museum():
    """A bug more or less changes no sentence (nor does a check that looks at all of them)."""
    number = r"\b(\d+|[a-z]+(teen|ty)|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
    counted = rf"{number} (of the museum|bugs\b|wrong (backward|ways)|such backward|of them\b.*bug)"
    found = [(path.name, m[0]) for path in TEXTS for m in re.finditer(counted, TEXTS[path], re.I)]
    assert found == [], "say “the museum's bugs”"


def test_every_bug_has_a_name_of_its_own_and_forgets_something():
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert all(bug.forgets for bug in BUGS)


def test_readme_names_every_module_of_the_core():
    names = [p.name for p in ROOT.glob("lnlib/*.py") if p.name != "__init__.py"]
    assert [name for name in names if f"(lnlib/{name})" not in TEXTS[README]] == []


def test_numbered_formulas_of_several_lines_are_for_the_book_too():
    """Sphinx puts formulas with \\\\ into a "split", which takes no \\tag; \\cr does as well."""
    for path, text in TEXTS.items():
        for formula in re.findall(r"\$\$(.*?)\$\$", text, flags=re.S):
            assert not (r"\\" in formula and r"\tag" in formula), (path.name, formula)


def test_other_words_than_code_execute_no_page():
    """Names and numbers change outputs; comments, docstrings and spaces do not."""
    source = 'def double(x):\n    """Twice."""\n    return 2 * x  # two\n'
    same = source.replace("Twice", "Two of it").replace("# two", "").replace("    ", "  ")
    assert code_of(same) == code_of(source)
    assert code_of(source.replace("double", "twice")) != code_of(source)
    assert code_of(source.replace("2 *", "3 *")) != code_of(source)


def test_measurements_are_kept_until_one_of_their_cells_changes():
    def cells(*sources, output):
        tags = {"tags": ["nbval-ignore-output"]}
        found = enumerate(zip(sources, [tags, tags, {}]))
        return [
            from_dict({"id": str(k), "source": source, "metadata": more, "outputs": [output]})
            for k, (source, more) in found
        ]

    before = cells("timed()", "drawn()", "computed()", output="1 ms")
    after = cells("timed()", "drawn()", "changed()", output="2 ms")
    keep_measured(after, before)
    assert [cell.outputs for cell in after] == [["1 ms"], ["1 ms"], ["2 ms"]]
    after = cells("timed()", "changed()", "computed()", output="2 ms")
    keep_measured(after, before)
    assert [cell.outputs for cell in after] == [["2 ms"]] * 3  # of one run
