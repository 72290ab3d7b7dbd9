"""Look at the book in Chromium at a phone's width: can every formula be read?

Takes pages that sphinx-build wrote. A formula has to begin inside its box. Where it is wider, the
box has to scroll as far as it reaches, but not the page. Prints those that cannot be
read in full, and fails if there are any.
"""

import argparse
import json
import tempfile
from pathlib import Path

from chromium import PUT_DOWN, answer, report, with_script

WIDTH = 400  # pixels
PROBE = """<script>
window.addEventListener("load", async () => {
  await window.MathJax?.startup.promise;  // the index and the search page have no formulas
  await document.fonts.ready;
  const found = [...document.querySelectorAll(".bd-article mjx-container")].map((formula) => {
    const number = formula.hasAttribute("display") ? ", mjx-mtable, mjx-labels" : "";
    const parts = [...formula.querySelectorAll("mjx-math" + number)];
    const boxes = parts.map((part) => part.getBoundingClientRect()).filter(({width}) => width);
    let box = formula;
    const scrolls = (node) => ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
    const seen = (node) => node.getBoundingClientRect().right < innerWidth + 1;
    while (box.parentElement && !(scrolls(box) && seen(box))) box = box.parentElement;
    const left = box.getBoundingClientRect().left - box.scrollLeft;
    const width = box.parentElement ? box.scrollWidth : innerWidth;  // the page must not scroll
    if (!boxes.length) return {before: 0, beyond: 0, words: ""};  // hidden
    return {
      before: left - Math.min(...boxes.map(({left}) => left)),
      beyond: Math.max(...boxes.map(({right}) => right)) - left - width,
      words: formula.textContent.slice(0, 40),
    };
  });
  parent.postMessage({page: NAME, found}, "*");
});
</script>"""
FRAMES = """<body><script>
const found = [];
addEventListener("message", ({data}) => {
  found.push(data);
  next();
});
function next() {
  document.querySelector("iframe")?.remove();
  if (!pages.length) {
    PUT_DOWN
    return;
  }
  const frame = document.createElement("iframe");
  Object.assign(frame, {src: pages.shift(), width: WIDTH, height: 800});
  document.body.append(frame);
}
const pages = PAGES;
next();
</script>"""


def formulas(pages):
    """Return what Chromium finds out about the formulas, {page: list of dict}."""
    probes = []
    try:
        for page in pages:
            probes.append(with_script(page, PROBE.replace("NAME", json.dumps(page.name))))
        names = json.dumps([probe.as_uri() for probe in probes])
        with tempfile.TemporaryDirectory() as folder:
            frames = Path(folder, "frames.html")
            text = FRAMES.replace("PAGES", names).replace("WIDTH", str(WIDTH))
            frames.write_text(text.replace("PUT_DOWN", PUT_DOWN), "utf-8")
            found = answer(frames, "--allow-file-access-from-files")
    finally:
        for probe in probes:
            probe.unlink()
    return {each["page"]: each["found"] for each in found}


def lost(formula):
    """Return by how many pixels a formula is out of reach, {} if it can be read."""
    cut = {key: round(formula[key]) for key in ("before", "beyond")}
    return cut if max(cut.values()) > 1 else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path, help="such as _build/html/*.html")
    report(formulas([path.resolve() for path in parser.parse_args().pages]), lost)


if __name__ == "__main__":
    main()
