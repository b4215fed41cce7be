"""A way to JAX's service that stays open where the process that has the service is lost.

JAX's client aborts its process as soon as the connection to the service breaks. None of JAX's
options keeps it from that: recoverable tasks need the service, and of Python's callback for the
loss jaxlib cannot convert the argument. So the client is given a connection to its own process.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

THREAD = "tfdp-relay"

_CHUNK_BYTES = 2**16


@contextlib.contextmanager
def relayed(host: str, port: int) -> Iterator[str]:
    """Passes on, to a service and back, what connects to this process within the context.

    A connection that was made in time goes on after the context. Where the service is lost the
    client hears nothing more, and nothing of the loss: others must notice it.

    Args:
      host: The host of the service.
      port: Its port. Where nobody listens there yet, a client is refused, and may try again.

    Yields:
      The address for the client, "host:port", on the loopback interface.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _in_thread(_accept, listener, (host, port))
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread


def _accept(listener: socket.socket, address: tuple[str, int]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        try:
            service = socket.create_connection(address)
        except OSError:
            client.close()
            continue
        client.dup().detach()  # it stays open as long as the process lives
        _in_thread(_pass_on, client, service)
        _in_thread(_pass_back, service, client)


def _pass_on(client: socket.socket, service: socket.socket) -> None:
    if _copied(client, service):
        _end(service)


def _pass_back(service: socket.socket, client: socket.socket) -> None:
    if not _copied(service, client):
        _end(service)


def _copied(source: socket.socket, target: socket.socket) -> bool:
    """Copies until one side has ended; returns whether that was the source."""
    while True:
        try:
            data = source.recv(_CHUNK_BYTES)
        except OSError:
            return True
        if not data:
            return True
        try:
            target.sendall(data)
        except OSError:
            return False


def _end(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)


def _in_thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, name=THREAD, daemon=True).start()
