"""Walk through the course in a browser: run every cell of its pages there, compare the outputs.

First build the site with notebooks/lite/build.py, in _build/html/lite. This needs Chromium and the
package playwright, which drives it. Prints what each page loads and how long it takes, and each
cell whose output is not the stored one. Fails if a cell raises an error, or differs without being
named in DIFFERENT below.
"""

import argparse
import functools
import http.server
import json
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

# What may differ in a browser: page -> a pattern in the cell's source.
DIFFERENT = {
    "00_start_here.ipynb": r"status\(",  # no CuPy, no compiler
}
READY = """async () => {
  const page = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  if (!page || !page.context || !page.content || !page.content.widgets) return false;
  await page.context.ready; await page.context.sessionContext.ready;
  const session = page.context.sessionContext.session;
  return Boolean(session && session.kernel && session.kernel.status == 'idle'); }"""
RUN_ALL = """() => {
  window.done = null;
  window.jupyterapp.commands.execute('notebook:run-all-cells').then(
    () => window.done = 'ran', error => window.done = 'stopped: ' + error); }"""
MODEL = "() => window.jupyterapp.shell.currentWidget.content.model.toJSON()"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site and counts the bytes that it sends."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".wasm": "application/wasm", ".mjs": "text/javascript", ".whl": "application/zip",
    }  # fmt: skip
    sent = 0

    def log_message(self, *message):
        pass

    def copyfile(self, source, outputfile):
        data = source.read()
        Handler.sent += len(data)
        outputfile.write(data)


def text_of(cell):
    """Return the texts that a cell has put out, without the addresses of what stands in memory."""
    texts = []
    for output in cell.get("outputs", []):
        plain = output.get("text") or output.get("data", {}).get("text/plain", "")
        if "image/png" not in output.get("data", {}) and output.get("name") != "stderr":
            texts.append("".join(plain))
    return re.sub(r"0x[0-9a-f]+", "", "".join(texts)).strip()


def run_page(browser, base, page):
    """Run all cells of a page in the browser; return its notebook and what that took."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        context = browser.launch_persistent_context(
            profile, executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        elsewhere = []
        context.on("request", lambda r: r.url.startswith("http") and elsewhere.append(r.url))
        Handler.sent, started = 0, time.monotonic()
        tab = context.new_page()
        tab.goto(f"{base}/lab/index.html?path=notebooks/{page}")
        while not tab.evaluate(READY):
            time.sleep(0.2)
        ready = time.monotonic()
        tab.evaluate(RUN_ALL)
        tab.wait_for_function("window.done", timeout=400_000)
        ran = time.monotonic()
        time.sleep(2)  # outputs arrive after the cell is done
        notebook = tab.evaluate(MODEL)
        context.close()
    foreign = sorted({url for url in elsewhere if not url.startswith(base)})
    return notebook, {
        "MB": Handler.sent / 1e6, "kernel": ready - started, "cells": ran - ready,
        "elsewhere": foreign,
    }  # fmt: skip


def differences(page, stored, run):
    """Yield (number, source, stored text, text in the browser) of the cells that differ."""
    allowed = DIFFERENT.get(page, r"(?!)")
    cells = [c for c in stored["cells"] if c["cell_type"] == "code"]
    there = [c for c in run["cells"] if c["cell_type"] == "code"]
    for number, (before, after) in enumerate(zip(cells, there, strict=True), start=1):
        source, outputs = "".join(before["source"]), after.get("outputs", [])
        failed = next((o["evalue"] for o in outputs if o["output_type"] == "error"), None)
        ignored = "nbval-ignore-output" in before["metadata"].get("tags", [])
        same = ignored or text_of(before) == text_of(after) or re.search(allowed, source)
        if failed is not None or not same:
            yield number, source, text_of(before), failed or text_of(after)


def main():
    """Read the command line, walk, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="what notebooks/lite/build.py has built")
    parser.add_argument("pages", nargs="*", help="such as 01_derivation.ipynb; by default all")
    asked = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("walk_lite needs the package playwright: pip install playwright")
    if not shutil.which("chromium"):
        sys.exit("walk_lite needs chromium")
    folder = asked.site / "files/notebooks"
    pages = asked.pages or [str(p.relative_to(folder)) for p in sorted(folder.rglob("*.ipynb"))]
    handler = functools.partial(Handler, directory=str(asked.site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base, bad = f"http://127.0.0.1:{server.server_port}", 0
    with sync_playwright() as player:
        for page in pages:
            stored = json.loads((folder / page).read_text(encoding="utf-8"))
            run, took = run_page(player.chromium, base, page)
            found = list(differences(page, stored, run))
            bad += bool(found) + bool(took["elsewhere"])
            cells = sum(c["cell_type"] == "code" for c in run["cells"])
            print(
                f"{page}: {cells} cells, {len(found)} differ; {took['MB']:.0f} MB, kernel after "
                f"{took['kernel']:.0f} s, all cells in {took['cells']:.0f} s", flush=True,
            )  # fmt: skip
            for number, source, before, after in found:
                print(f"  cell {number}: {source.splitlines()[0]}\n    {before[:200]!r}")
                print(f"    {after[:200]!r}")
            for url in took["elsewhere"]:
                print(f"  asked {url}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
