"""Hosts on one machine: network namespaces that a bridge joins, each with a limited rate (Linux).

Everything, the bridge included, is made inside namespaces. Nothing of the machine's own network
changes, and deleting the namespaces deletes all of it.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence

_NAME = "tfdp-bench-"

#: The name of a host's end of its link.
INTERFACE = "eth0"


class HostsError(RuntimeError):
    """An error where the hosts cannot be built."""


@contextlib.contextmanager
def hosts(count: int, rate: str | None, burst: str = "256kb") -> Iterator[list[str]]:
    """Builds `count` hosts, and takes them down again whatever happens, SIGTERM included.

    The hosts that a killed run has left are taken down first.

    Args:
      count: The number of hosts.
      rate: The rate at which each may send, such as `"200mbit"` (by a token bucket); None for no
        limit.
      burst: The size of the token bucket: what is sent at once after a pause. Rates of 1 Gbit/s
        need some 256 KiB.

    Yields:
      The names of their namespaces; host `i` has the address `address(i)`.

    Raises:
      HostsError: This user, or this machine, cannot make them.
    """
    _check()
    _take_down_what_is_left()
    prefix = f"{_NAME}{os.getpid()}-"
    names = [f"{prefix}{index}" for index in range(count)]
    switch = f"{prefix}switch"
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for index, name in enumerate(names):
            _build(index, name, switch, rate, burst)
        yield names
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        signal.signal(signal.SIGTERM, before)


def address(index: int) -> str:
    """Returns the address of host `index`.

    >>> address(1)
    '10.77.0.2'
    """
    return f"10.77.{(index + 1) // 256}.{(index + 1) % 256}"


def inside(name: str, command: Sequence[str]) -> list[str]:
    """Returns `command` as a command that runs on the host.

    >>> inside("h0", ["hostname", "-I"])
    ['ip', 'netns', 'exec', 'h0', 'hostname', '-I']
    """
    return ["ip", "netns", "exec", name, *command]


def set_link(name: str, up: bool) -> None:
    """Joins a host to the others, or cuts it off.

    What is sent meanwhile is lost. Connections stay open, as where a switch fails.

    Args:
      name: The name of its namespace.
      up: Whether it is joined.

    Raises:
      HostsError: There is no such host.
    """
    prefix, _, index = name.rpartition("-")
    _ip("-n", f"{prefix}-switch", "link", "set", f"port{index}", "up" if up else "down")


def _build(index: int, name: str, switch: str, rate: str | None, burst: str) -> None:
    port = f"port{index}"
    _ip("netns", "add", name)
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", INTERFACE, "netns", name)
    _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
    _ip("-n", name, "addr", "add", f"{address(index)}/16", "dev", INTERFACE)
    for interface in (INTERFACE, "lo"):
        _ip("-n", name, "link", "set", interface, "up")
    if rate is not None:
        limit = ["tbf", "rate", rate, "burst", burst, "latency", "100ms"]
        _call(inside(name, ["tc", "qdisc", "add", "dev", INTERFACE, "root", *limit]))


def _check() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise HostsError(
            f"`--hosts` must have the tools `ip` and `tc`; received a machine without "
            f"{' and '.join(missing)}; install iproute2, or leave `--hosts` out."
        )
    if os.geteuid() != 0:
        raise HostsError(
            "`--hosts` must be run by root, for it makes network namespaces; received user "
            f"{os.geteuid()}; run it as root, or leave `--hosts` out."
        )


def _take_down_what_is_left() -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for name, process in re.findall(rf"^({_NAME}(\d+)-\S+)", listed.stdout, re.MULTILINE):
        if not os.path.exists(f"/proc/{process}"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _ip(*words: str) -> None:
    _call(["ip", *words])


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostsError(
            f"`{' '.join(command)}` must work for `--hosts`, but failed: "
            f"{done.stderr.strip() or done.returncode}. Run where network namespaces are allowed, "
            "or leave `--hosts` out."
        )
