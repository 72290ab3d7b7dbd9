"""Python as a browser has it: no CuPy, compiler, debugger or process. See notebooks/conftest.py."""

import sys

PROCESSES = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
PROCESSES.add("subprocess.Popen")


def refuse(event, arguments):
    if event in PROCESSES:
        raise OSError(f"no processes here: {event}{arguments}")


for name in ("cupy", "debugpy", "ziglang"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
sys.addaudithook(refuse)
