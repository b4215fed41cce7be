"""What connects to a relay reaches the service, and does not hear that it is lost."""

import select
import socket
import threading

import pytest

from tfdp.strategy.xla import relay

pytestmark = pytest.mark.timeout(120)


def all_threads():
    return {each for each in threading.enumerate() if each.name == relay.THREAD}


def received(connection, count):
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data))
    return data


@pytest.fixture
def connected():
    """A client's and a service's end of a relayed connection, and the relay's threads."""
    before = all_threads()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with relay.relayed(*listener.getsockname()) as address:
            host, port = address.split(":")
            client = socket.create_connection((host, int(port)))
            service, _ = listener.accept()
            for source, target in ((client, service), (service, client)):  # both threads run
                source.sendall(b"hello")
                assert received(target, 5) == b"hello"
        yield client, service, all_threads() - before
    for each in (client, service):
        each.close()


def test_a_connection_goes_on_after_the_context_both_ways(connected):
    client, service, _ = connected
    for source, target in ((client, service), (service, client)):
        data = bytes(range(256)) * 4096
        sending = threading.Thread(target=source.sendall, args=[data])
        sending.start()
        assert received(target, len(data)) == data
        sending.join()


def test_a_client_does_not_hear_that_the_service_is_lost(connected):
    client, service, threads = connected
    service.close()
    while sum(each.is_alive() for each in threads) > 1:  # what passes back has noticed
        for each in threads:
            each.join(0.05)
    client.sendall(b"is anybody there?")
    assert select.select([client], [], [], 0)[0] == []


def test_the_service_hears_that_the_client_has_ended(connected):
    client, service, threads = connected
    client.close()
    assert service.recv(1) == b""
    for each in threads:
        each.join()


def test_a_client_that_is_early_is_refused_and_none_is_taken_after_the_context():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()
    with relay.relayed(*nobody) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as client:
            assert client.recv(1) == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)))
