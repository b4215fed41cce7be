"""A command that measures sums, in a process of its own."""

import json
import shlex
import subprocess
import sys


def run(module, words, folder):
    """What a module's command finds, one result after the other, and what it prints."""
    files = ["--output", str(folder / "x.png"), "--json", str(folder / "x.json")]
    command = [sys.executable, "-m", *shlex.split(f"{module} {words}"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "x.png").stat().st_size > 0
    results = json.loads((folder / "x.json").read_text())["results"]
    assert all(result["right"] and len(result["seconds"]) == 2 for result in results)
    return results, done.stdout
