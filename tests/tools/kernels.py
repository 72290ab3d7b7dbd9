"""Start kernels as copies of one process that has imported what most lessons import.

Run as a program, it reads a kernel's command, folder and environment from each line of its input,
starts the kernel by fork, and answers with its process id. The copies share nothing afterwards.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time

# What takes a second in every kernel. None of it is the course's own.
COMMON = "numpy", "matplotlib.font_manager", "matplotlib.pyplot", "ipykernel.kernelapp", "ipywidgets"


class Copy:
    """A kernel, with the methods of a `subprocess.Popen` that jupyter_client asks for."""

    stdin = stdout = stderr = None

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        """Return None while the kernel runs."""
        try:
            return os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0

    def wait(self):
        while self.poll() is None:
            time.sleep(0.01)
        return 0

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


class Server:
    """The process that is copied; it ends with this one."""

    process = None

    def launch(self, command, first=None, *, env, cwd, **_):
        """Start a kernel as jupyter_client's launch_kernel does; it runs the script first, first."""
        if self.process is None:
            pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE) | {"encoding": "utf-8"}
            own = sys.executable, __file__
            self.process = subprocess.Popen(own, **pipes, start_new_session=True)
        arguments = command[command.index("-f") :]  # and not those of Python
        job = {"arguments": arguments, "first": first, "env": env, "cwd": str(cwd)}
        print(json.dumps(job), file=self.process.stdin, flush=True)
        return Copy(int(self.process.stdout.readline()))


def become_a_kernel(arguments, first, env, cwd):
    """Run a kernel in this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env, JPY_PARENT_PID=str(os.getppid()))
    del sys.path[0]  # the folder of this file
    if first:
        runpy.run_path(first)
    sys.argv = ["ipykernel_launcher", *arguments]
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance()


def main():
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as a kernel sets it
    sys.modules["debugpy"] = None  # no page is debugged
    for name in COMMON:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a kernel
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            become_a_kernel(**json.loads(line))
            os._exit(0)
        with contextlib.suppress(ProcessLookupError):
            os.setpgid(pid, pid)  # signals to its group reach nobody else
        print(pid, flush=True)


if __name__ == "__main__":
    main()
