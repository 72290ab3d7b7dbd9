"""Python as a browser has it: no CuPy, compiler, debugger, process, new thread or alarm.

The threads that ipykernel starts for itself stay: only timers cannot be started. See
notebooks/conftest.py.
"""

import signal
import sys
import threading

PROCESSES = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
PROCESSES.add("subprocess.Popen")


def refuse(event, arguments):
    if event in PROCESSES:
        raise OSError(f"no processes here: {event}{arguments}")


def start(self):
    raise RuntimeError("can't start new thread")


for name in ("cupy", "debugpy", "ziglang"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
sys.addaudithook(refuse)
threading.Timer.start = start
for name in {"alarm", "setitimer", "getitimer"} & set(dir(signal)):
    delattr(signal, name)
