"""The rate of a link: one TCP stream for some seconds, as iperf3 measures it.

python -m tfdp.tools.bench.link_rate serve ADDRESS
python -m tfdp.tools.bench.link_rate send ADDRESS PORT SECONDS
"""

import socket
import subprocess
import sys
import time
from collections.abc import Sequence

_BLOCK = bytes(2**18)
_DEADLINE_SECONDS = 30.0


def measure(
    sender: Sequence[str], receiver: Sequence[str], address: str, seconds: float = 2.0
) -> float:
    """Returns the bytes per second from one host to another.

    Args:
      sender: The words before a command that runs it on the sending host, such as
        `ip netns exec NAME`.
      receiver: The words before a command that runs it on the receiving host.
      address: The receiver's address.
      seconds: How long to send.

    Raises:
      RuntimeError: The two hosts could not talk.
    """
    module = [sys.executable, "-m", __spec__.name if __spec__ else __name__]
    server = subprocess.Popen(
        [*receiver, *module, "serve", address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        subprocess.run(
            [*sender, *module, "send", address, port, str(seconds)],
            check=True,
            timeout=seconds + _DEADLINE_SECONDS,
        )
        return float(server.communicate(timeout=_DEADLINE_SECONDS)[0])
    except (subprocess.SubprocessError, ValueError, OSError) as error:
        raise RuntimeError(f"The link to {address} could not be measured: {error}") from error
    finally:
        server.kill()
        server.wait()


def _serve(address: str) -> None:
    with socket.create_server((address, 0)) as listening:
        listening.settimeout(_DEADLINE_SECONDS)
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
    received, began = 0, None
    buffer = bytearray(2**20)
    connection.settimeout(_DEADLINE_SECONDS)
    while count := connection.recv_into(buffer):
        if began is None:  # the bytes that filled the buffers at once do not count
            began = time.perf_counter()
        else:
            received += count
    assert began is not None
    print(received / (time.perf_counter() - began), flush=True)


def _send(address: str, port: int, seconds: float) -> None:
    with socket.create_connection((address, port), timeout=_DEADLINE_SECONDS) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(_BLOCK)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
