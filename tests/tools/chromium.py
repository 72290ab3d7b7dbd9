"""Ask Chromium, or Chrome, what a page looks like. check_slides.py and check_book.py do."""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile

# Ends a script in a page: what it has found stands in the element that `answer` reads.
PUT_DOWN = """document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);"""


def browser():
    """Return the browser's path, or None."""
    return shutil.which("chromium") or shutil.which("google-chrome")


def with_script(page, script):
    """Write a copy of a page, with a script at its end, beside it; return the copy's path."""
    probe = page.with_suffix(".probe.html")
    text = page.read_text("utf-8").replace("</body>", script + "</body>")
    probe.write_text(text, "utf-8")
    return probe


def answer(page, *flags):
    """Open a page; return what a script in it has put down. Exits if there is nothing."""
    if browser() is None:
        sys.exit("this needs chromium or google-chrome")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", *flags]
        flags += ["--virtual-time-budget=200000", f"--user-data-dir={profile}"]
        command = [browser(), *flags, "--dump-dom", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if found is None:
        sys.exit(f"{page}: the page did not answer; did its scripts run?")
    return json.loads(html.unescape(found[1]))


def report(found, problem):
    """Print the parts of each page that have a problem; exit, with 1 if there are any.

    found is {page: list of dict}, each dict with the part's "words"; problem(part) is empty if
    the part is as it should be.
    """
    failed = 0
    for page, parts in found.items():
        for part in filter(problem, parts):
            failed += 1
            print(f"{page} {part.get('slide', '')}: {problem(part)}: {part['words']!r}")
        print(f"{page}: {len(parts)} looked at")
    sys.exit(failed > 0)
