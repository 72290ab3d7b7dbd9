"""Walk through slides in Chromium: does every slide fit, and is its code large enough to read?

Takes what build_slides.py wrote. Prints the slides that do not fit, or on which a click shows
nothing, and fails if there are any.
"""

import argparse
from pathlib import Path

from chromium import PUT_DOWN, answer, report, with_script

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
      small: Math.max(0, ...sizes.map((size) => 22 - size)),
      clicks: [...slide.querySelectorAll(".fragment")].filter(empty).length,
    };
  });
  PUT_DOWN
};
walk();
</script>
""".replace("PUT_DOWN", PUT_DOWN)


def walk(page):
    """Return what Chromium found out about each slide of a page."""
    probe = with_script(page, PROBE)
    try:
        return answer(probe, "--window-size=1366,768")
    finally:
        probe.unlink()


def overflows(slide):
    """Return by how many pixels a slide is too large, its code too small; {} if it fits.

    The number of clicks that show nothing is among them, as "clicks".
    """
    limits = {"below": 1, "beside": 1, "wide": 1, "small": 1, "clicks": 0}
    return {key: slide[key] for key, limit in limits.items() if slide[key] > limit}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="such as _build/slides/60-minutes.html")
    report({path.name: walk(path.resolve()) for path in parser.parse_args().paths}, overflows)


if __name__ == "__main__":
    main()
