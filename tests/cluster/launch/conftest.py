"""Starts `tfdp run` on light scripts, and looks for processes that it leaves behind."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

# What the scripts of these tests begin with; `marked` stands for making a strategy.
PREAMBLE = """
import json, os, signal, subprocess, sys, time
from tfdp.cluster.rank_status import tell
def marked(): tell(made=True)
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
"""


def _heed_signals():
    """What a shell in the background, or nohup, ignores, all that it starts ignores too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Runs:
    """Starts launchers in a folder. Each process below carries a mark of the test's own."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = f"TFDP_TEST_MARK={uuid.uuid4()}"
        name, value = self.mark.split("=")
        self.environ = {**os.environ, name: value}
        for inherited in ("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
            self.environ.pop(inherited, None)
        self.launchers = []

    def script(self, body):
        """Writes a script and returns its name."""
        name = f"script_{len(list(self.folder.glob('script_*')))}.py"
        (self.folder / name).write_text(PREAMBLE + textwrap.dedent(body))
        return name

    def start(self, *words, change="", **environ):
        """Starts `tfdp run`, in a process in which `change` was run before, and does not wait."""
        code = textwrap.dedent(change) + "import sys\nfrom tfdp.tools.cli import main\n"
        launcher = subprocess.Popen(
            [sys.executable, "-c", code + "sys.exit(main())\n", "run", *map(str, words)],
            cwd=self.folder,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_heed_signals,
        )
        self.launchers.append(launcher)
        return launcher

    def run(self, *words, change="", **environ):
        """Runs `tfdp run`, as `start` does, to its end."""
        return ended(self.start(*words, change=change, **environ))

    def wait_for(self, *names, seconds=120):
        """Waits until the scripts have made these files."""
        deadline = time.monotonic() + seconds
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline, f"{names} were not made in {seconds} s"
            time.sleep(0.01)

    def alive(self):
        """The marked processes that run, as far as Linux's /proc tells."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_bytes()
        return found

    def assert_nobody_is_left(self, within_seconds=60.0):
        """Asserts that all marked processes are gone, or go soon."""
        deadline = time.monotonic() + within_seconds
        while self.alive():
            assert time.monotonic() < deadline, f"left behind: {self.alive()}"
            time.sleep(0.02)

    def end_all(self):
        """Whatever a failed test leaves."""
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait()
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Ended:
    """What a launcher that has ended said."""

    def __init__(self, returncode, stdout, stderr):
        self.returncode = returncode
        self.stdout, self.stderr = stdout, stderr
        self.out, self.err = stdout.decode(errors="replace"), stderr.decode(errors="replace")

    @property
    def verdict(self):
        """The launcher's own last lines, after the ranks' output."""
        found = re.search(r"^tfdp run: .*", self.err, re.MULTILINE | re.DOTALL)
        return found[0] if found else ""


def ended(launcher, seconds=180):
    """Waits for a launcher."""
    stdout, stderr = launcher.communicate(timeout=seconds)
    return Ended(launcher.returncode, stdout, stderr)


@pytest.fixture
def wait_until_ended():
    """The function that waits for a started launcher and returns what it said."""
    return ended


@pytest.fixture
def runs(tmp_path):
    """A starter of launchers whose processes are all gone after the test."""
    starter = Runs(tmp_path)
    yield starter
    starter.end_all()
