"""Walk through slides in Chromium: does every slide fit, and is its code large enough to read?

Takes what build_slides.py wrote. Prints the slides that do not fit, or on which a click shows
nothing, and fails if there are any.
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
<script>
const walk = () => {
  if (!document.documentElement.classList.contains("ready")) return setTimeout(walk, 100);
  const found = Reveal.getSlides().map((slide) => {
    const {h, v} = Reveal.getIndices(slide);
    Reveal.slide(h, v, 99);
    const code = [...slide.querySelectorAll("pre")].filter((listing) => listing.offsetHeight);
    const sizes = code.map((listing) => parseFloat(getComputedStyle(listing).fontSize));
    const empty = (node) => !node.querySelector("p, pre, li, td, h3, img, svg, input");
    return {
      slide: `${h + 1}.${v + 1}`,
      words: slide.innerText.trim().slice(0, 60),
      below: slide.scrollHeight - 768,
      beside: slide.scrollWidth - 1366,
      wide: Math.max(0, ...code.map((listing) => listing.scrollWidth - listing.clientWidth)),
      small: Math.max(0, ...sizes.map((size) => 20 - size)),
      clicks: [...slide.querySelectorAll(".fragment")].filter(empty).length,
    };
  });
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
};
walk();
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
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1366,768"]
            flags += ["--virtual-time-budget=200000"]
            done = subprocess.run(
                [browser, *flags, f"--user-data-dir={profile}", "--dump-dom", probe.as_uri()],
                capture_output=True, text=True, timeout=300,
            )  # fmt: skip
    finally:
        probe.unlink()
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if found is None:
        sys.exit(f"{page}: no slides appeared")
    return json.loads(html.unescape(found[1]))


def overflows(slide):
    """Return by how many pixels a slide is too large, its code too small; {} if it fits.

    The number of clicks that show nothing is among them, as "clicks".
    """
    limits = {"below": 1, "beside": 1, "wide": 1, "small": 1, "clicks": 0}
    return {key: slide[key] for key, limit in limits.items() if slide[key] > limit}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="such as _build/slides/60-minutes.html")
    failed = 0
    for path in parser.parse_args().paths:
        slides = walk(path.resolve())
        for slide in filter(overflows, slides):
            failed += 1
            print(f"{path.name} {slide['slide']}: {overflows(slide)}: {slide['words']!r}")
        print(f"{path.name}: {len(slides)} slides")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
