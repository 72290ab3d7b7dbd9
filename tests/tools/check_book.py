"""Look at the book in Chromium at a phone's width: can every formula be read?

Takes pages that sphinx-build wrote. A displayed formula has to begin inside its box. Where it is
wider, the box has to scroll as far as it reaches, but not the page. Prints those that cannot be
read in full, and fails if there are any.
"""

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH = 400  # pixels
PROBE = """<script>
window.addEventListener("load", async () => {
  await window.MathJax?.startup.promise;  // the index and the search page have no formulas
  await document.fonts.ready;
  const found = [...document.querySelectorAll("mjx-container[display]")].map((formula) => {
    const parts = [...formula.querySelectorAll("mjx-math, mjx-mtable, mjx-labels")];
    const boxes = parts.map((part) => part.getBoundingClientRect()).filter(({width}) => width);
    let box = formula;
    const scrolls = (node) => ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
    const seen = (node) => node.getBoundingClientRect().right < innerWidth + 1;
    while (box.parentElement && !(scrolls(box) && seen(box))) box = box.parentElement;
    const left = box.getBoundingClientRect().left - box.scrollLeft;
    const width = box.parentElement ? box.scrollWidth : innerWidth;  // the page must not scroll
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
const seen = [];
addEventListener("message", ({data}) => {
  seen.push(data);
  next();
});
function next() {
  document.querySelector("iframe")?.remove();
  if (!pages.length) {
    document.body.innerHTML = "<pre id=found></pre>";
    document.getElementById("found").textContent = JSON.stringify(seen);
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
    """Return what Chromium finds out about the displayed formulas, {page: list of dict}."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("check_book needs chromium or google-chrome")
    probes = []
    try:
        for page in pages:
            probe = page.with_suffix(".probe.html")
            script = PROBE.replace("NAME", json.dumps(page.name))
            text = page.read_text("utf-8").replace("</body>", script + "</body>")
            probe.write_text(text, "utf-8")
            probes.append(probe)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            names = json.dumps([probe.as_uri() for probe in probes])
            frames = Path(folder, "frames.html")
            frames.write_text(FRAMES.replace("PAGES", names).replace("WIDTH", str(WIDTH)), "utf-8")
            flags = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--allow-file-access-from-files",
            ]
            flags += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=200000"]
            command = [browser, *flags, "--dump-dom", frames.as_uri()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    finally:
        for probe in probes:
            probe.unlink()
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if found is None:
        sys.exit("no page answered: is MathJax where the pages look for it?")
    return {each["page"]: each["found"] for each in json.loads(html.unescape(found[1]))}


def lost(formula):
    """Return by how many pixels a formula is out of reach, {} if it can be read."""
    cut = {key: round(formula[key]) for key in ("before", "beyond")}
    return cut if max(cut.values()) > 1 else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path, help="such as _build/html/*.html")
    failed = 0
    for page, found in formulas([path.resolve() for path in parser.parse_args().pages]).items():
        for formula in filter(lost, found):
            failed += 1
            print(f"{page}: pixels out of reach {lost(formula)}: {formula['words']!r}")
        print(f"{page}: {len(found)} formulas")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
