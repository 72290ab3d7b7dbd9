"""Build the course for a browser: python notebooks/lite/build.py (pip install -e '.[lite]' before).

JupyterLite runs the notebooks with Pyodide, a Python that the browser itself executes; the reader
installs nothing. The site holds the pages, Pyodide, and the packages that the pages import. Every
file of Pyodide is compared with its checksum. Where a page needs a compiler, it says so.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.27.7"  # of Pyodide, the last with which the pages were walked through
RELEASE = (
    f"https://github.com/pyodide/pyodide/releases/download/{VERSION}/pyodide-{VERSION}.tar.bz2"
)
CORE = {  # what Pyodide starts from, and the list of its packages with their checksums
    "pyodide.js": "b4cb23a53aba19c221659b9fb40a2f18281d685691dc06647fb0afd0681baf98",
    "pyodide.mjs": "04c052c815abb0bf2981fa38c2dfa58e3120ee5288c956df2b2a15e301782c5f",
    "pyodide.asm.js": "6b4c90de5b7172873f04f21884d0e9d2274e305fe32116558fe3e4fbe3618d51",
    "pyodide.asm.wasm": "a50dd1843f805a0b7c45b61037ee0d7b26dfe85efe0e18ef95a34ad24e401f5f",
    "python_stdlib.zip": "16611534726e5d8ac2bd8f926410b2dcb8d6f49aa24913463533b457a2115c16",
    "pyodide-lock.json": "9c45b916001a750f4102fc287494f3eab215909c7535c626a20db80fd6333e2c",
}
# What Pyodide lacks: package -> its version and what it imports. All of them are pure Python.
WHEELS = {
    "comm": ("0.2.3", ["traitlets"]),
    "ipywidgets": ("8.1.7", ["comm", "traitlets", "ipython"]),  # fits jupyterlab_widgets in [lite]
}
STARTS = "ssl sqlite3 micropip packaging ipython jedi".split()  # what the kernel asks for itself


def checksum(path):
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def download(folder):
    """Put the files of Pyodide's release into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        archive = Path(temporary) / "pyodide.tar.bz2"
        with urllib.request.urlopen(RELEASE) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with tarfile.open(archive) as files:
            files.extractall(temporary, filter="data")
        shutil.move(Path(temporary) / "pyodide", folder)


def wheel_of(requirement, folder):
    """Make or fetch one wheel, without what it requires; return its path."""
    before = set(folder.iterdir())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder]
    subprocess.run([*command, requirement], check=True)
    (path,) = set(folder.iterdir()) - before
    return path


def sources(folder):
    """Copy what a wheel of lnlib is made from, since building one leaves files behind."""
    shutil.copytree(ROOT / "lnlib", folder / "lnlib")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def add_pyodide(source, target, lnlib):
    """Copy Pyodide from source to target, checksums compared, and wheels of what it lacks.

    lnlib is the folder of the sources that the wheel of lnlib is made from.
    """
    target.mkdir(parents=True)
    for name, expected in CORE.items():
        if checksum(source / name) != expected:
            sys.exit(f"{source / name} is not that of Pyodide {VERSION}: its checksum differs")
        shutil.copy(source / name, target)
    lock = json.loads((source / "pyodide-lock.json").read_text(encoding="utf-8"))
    packages = lock["packages"]
    own = {name: (f"{name}=={version}", needs) for name, (version, needs) in WHEELS.items()}
    own["lnlib"] = lnlib, ["numpy", "matplotlib", *WHEELS]
    for name, (requirement, needs) in own.items():
        wheel = wheel_of(requirement, target)
        packages[name] = {
            "name": name, "version": wheel.name.split("-")[1], "file_name": wheel.name,
            "imports": [name], "depends": needs, "sha256": checksum(wheel),
            "install_dir": "site", "package_type": "package", "unvendored_tests": False,
        }  # fmt: skip
    needed, waiting = set(), [*STARTS, "matplotlib", "lnlib"]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in needed:
            needed.add(name)
            waiting += packages[name]["depends"]
    for name in needed - set(own):
        file = source / packages[name]["file_name"]
        if checksum(file) != packages[name]["sha256"]:
            sys.exit(f"{file} is not the one of Pyodide's list: its checksum differs")
        shutil.copy(file, target)
    lock["packages"] = {name: packages[name] for name in sorted(needed)}
    (target / "pyodide-lock.json").write_text(json.dumps(lock), encoding="utf-8")


def add_pages(target):
    """Copy the pages and their data; join stored outputs, which JupyterLite shows as lists."""
    notebooks = ROOT / "notebooks"
    for page in [*notebooks.glob("*.ipynb"), *notebooks.glob("solutions/*.ipynb")]:
        notebook = json.loads(page.read_text(encoding="utf-8"))
        for output in (o for cell in notebook["cells"] for o in cell.get("outputs", [])):
            data = output.get("data", {})
            for kind, value in data.items():
                data[kind] = "".join(value) if isinstance(value, list) else value
        copy = target / page.relative_to(notebooks)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")
    for name in ("data", "recorded"):
        shutil.copytree(notebooks / name, target / name)


def build(pyodide, out):
    """Build the site from a folder with Pyodide's files."""
    with tempfile.TemporaryDirectory() as temporary:
        site = Path(temporary) / "site"
        add_pyodide(pyodide, site / "static/pyodide", sources(Path(temporary) / "lnlib"))
        add_pages(site / "content/notebooks")
        shutil.copy(Path(__file__).with_name("jupyter-lite.json"), site)
        # JupyterLite looks for wheels that its kernel may install here, and wants one of comm.
        (site / "pypi").mkdir()
        shutil.copy(next((site / "static/pyodide").glob("comm-*.whl")), site / "pypi")
        command = [sys.executable, "-m", "jupyterlite_core", "build", "--lite-dir", site]
        command += ["--contents", site / "content", "--output-dir", out, "--no-sourcemaps"]
        command += ["--apps", "lab", "--apps", "notebooks"]
        subprocess.run(command, check=True, cwd=site)


def main():
    """Read the command line and build the site."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--pyodide", type=Path, help=f"a folder with the files of {RELEASE}, which else is fetched"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "_build/html/lite")
    asked = parser.parse_args()
    folder = asked.pyodide or ROOT / f"_build/pyodide-{VERSION}"
    if not folder.exists():
        download(folder)
    build(folder.resolve(), asked.out.resolve())
    size = sum(path.stat().st_size for path in asked.out.rglob("*") if path.is_file())
    print(f"The site is in {asked.out}, {size / 1e6:.0f} MB: open it through a web server.")


if __name__ == "__main__":
    main()
