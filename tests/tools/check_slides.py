"""Walk through slides in Chromium: is anything beyond the screen that cannot be reached?

The slides must find reveal.js; see notebooks/teaching.md. Prints the slides that scroll or
have a listing that does, and fails for those that are cut off.
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

PROBE = """
<style>.reveal * { transition: none !important; animation: none !important }</style>
<script>
window.addEventListener("load", () => setTimeout(async () => {
  const style = document.querySelector("link[href$='/dist/reveal.css']").getAttribute("href");
  const deck = window.Reveal || require(style.replace(".css", ".js"));  // loaded as a module
  const found = [];
  for (const slide of deck.getSlides()) {
    const {h, v} = deck.getIndices(slide);
    deck.slide(h, v, 99);
    for (let k = 0; k < 2; k++) {
      deck.layout();
      await new Promise(resolve => setTimeout(resolve, 300));
    }
    const reachable = getComputedStyle(slide).overflowY == "auto";
    found.push({
      slide: `${h + 1}.${v + 1}`,
      words: slide.innerText.trim().slice(0, 60),
      below: Math.round(slide.getBoundingClientRect().bottom - window.innerHeight),
      hidden: reachable ? 0 : slide.scrollHeight - slide.clientHeight,
      beside: Math.max(...[slide, ...slide.querySelectorAll(":not(.MJX_Assistive_MathML)")].map(
        part => getComputedStyle(part).overflowX == "hidden" && part.clientWidth > 1
          ? part.scrollWidth - part.clientWidth : 0)),
      wide: Math.max(0, ...[...slide.querySelectorAll("pre")].map(
        listing => listing.scrollWidth - listing.clientWidth)),
      screens: slide.scrollHeight / slide.clientHeight,
    });
  }
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
}, 8000));
</script>
"""


def walk(page):
    """Return what Chromium found out about each slide of a page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("check_slides needs chromium or google-chrome")
    text = page.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>")
    probe = page.with_suffix(".probe.html")
    probe.write_text(text, encoding="utf-8")
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1024,768"]
            flags += ["--allow-file-access-from-files", "--virtual-time-budget=200000"]
            done = subprocess.run(
                [browser, *flags, f"--user-data-dir={profile}", "--dump-dom", probe.as_uri()],
                capture_output=True, text=True, timeout=300,
            )  # fmt: skip
    finally:
        probe.unlink()
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if found is None:
        sys.exit(f"{page}: no slides appeared; is reveal.js where the page looks for it?")
    return json.loads(html.unescape(found[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="such as 01_derivation.slides.html")
    cut = 0
    for path in parser.parse_args().paths:
        slides = walk(path.resolve())
        for slide in slides:
            lost = max(slide["below"], slide["hidden"], slide["beside"]) > 1
            cut += lost
            if lost or slide["screens"] > 1.01 or slide["wide"] > 1:
                state = "CUT OFF" if lost else f"scrolls, {slide['screens']:.1f} screens"
                if slide["wide"] > 1:
                    state += f", a listing is {slide['wide']} px too wide"
                print(f"{path.name} {slide['slide']}: {state}: {slide['words']!r}")
        print(f"{path.name}: {len(slides)} slides")
    sys.exit(cut > 0)


if __name__ == "__main__":
    main()
