"""Ports are free, distinct, and not given to two runs."""

import socket

import pytest

from tfdp.launch import ports
from tfdp.launch.ports import ReservedPorts


def test_two_runs_get_different_ports_also_after_their_release(monkeypatch):
    monkeypatch.setattr(ports, "_PORTS", range(31000, 31040))
    with ReservedPorts(8) as one:
        one.release()
        with ReservedPorts(8) as other:
            assert not set(one.ports) & set(other.ports)


def test_a_released_port_can_be_listened_on():
    with ReservedPorts(1) as reserved:
        with pytest.raises(OSError):
            socket.create_server((ports.LOOPBACK, reserved.ports[0]))
        reserved.release()
        socket.create_server((ports.LOOPBACK, reserved.ports[0])).close()


def test_more_ranks_than_ports_are_refused(monkeypatch):
    monkeypatch.setattr(ports, "_PORTS", range(31050, 31053))
    with pytest.raises(OSError, match=r"received 4, and after 3 ports no other .* or start fewer"):
        ReservedPorts(4)
