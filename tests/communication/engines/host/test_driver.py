"""The driver: collectives in the caller's thread and in its own, and the end of what waits."""

import threading

import numpy as np
import pytest
from communication.engines.host.memory_transport import Memory, MemoryTransport

from tfdp.communication.engines.host import Driver, collective_programs
from tfdp.communication.engines.host.byte_transport import Lane


def collective(memory, rank, value=1.0):
    lane = Lane(MemoryTransport(memory, rank), rank, 1, 0)
    return collective_programs.all_reduce(np.full(3, value), lane, (0, 1), [0, 0])


def in_thread(call):
    """Calls in a thread, and gives a function that waits for what it returns or raises."""
    outcome = []

    def run():
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait():
        thread.join(30)
        assert not thread.is_alive()
        return outcome[0]

    return wait


def handed_over(driver, begun):
    done, errors = threading.Event(), []

    def when_done(error):
        errors.append(error)
        done.set()

    driver.hand_over(begun, "a sum", when_done)

    def wait():
        assert done.wait(30)
        return errors[0]

    return wait


def test_ranks_meet_in_any_thread():
    memory, drivers = Memory(), [Driver(), Driver()]
    for _ in range(3):
        first, other = collective(memory, 0, 2.0), collective(memory, 1, 3.0)
        waits = handed_over(drivers[0], first)
        drivers[1].run(other, "a sum")
        assert waits() is None
        assert first.result.tolist() == other.result.tolist() == [5.0] * 3
    assert [(driver.begun, driver.done) for driver in drivers] == [(3, 3), (3, 3)]


def test_what_waits_ends_with_the_message_and_nothing_begins_afterwards():
    driver, memory = Driver(), Memory()
    waits = [
        in_thread(lambda: driver.run(collective(memory, 0), "a sum")),
        handed_over(driver, collective(memory, 0)),
    ]
    while driver.begun < 2:
        pass
    driver.abort("lost rank 1")
    driver.abort("what followed")
    for error in [wait() for wait in waits]:
        assert isinstance(error, RuntimeError)
        assert str(error) == "lost rank 1"
    with pytest.raises(RuntimeError, match="lost rank 1"):
        driver.run(collective(memory, 0), "a sum")
    assert (driver.begun, driver.done) == (2, 0)
    assert driver.operation == "a sum"


class Breaks:
    def done(self):
        raise OSError("the other side is gone")


def test_an_error_of_the_transport_is_told_and_raised():
    told = []
    driver = Driver(on_error=told.append)

    def breaking():
        return collective_programs.HostCollective([iter([[Breaks()]])], np.zeros(0))

    with pytest.raises(OSError, match="gone"):
        driver.run(breaking(), "a sum")
    assert isinstance(handed_over(driver, breaking())(), OSError)
    assert len(told) == 2


class Later:
    def __init__(self):
        self.is_done = False

    def done(self):
        return self.is_done


@pytest.mark.parametrize(("in_turn", "at_first"), [(True, 1), (False, 3)])
def test_strands_begin_together_or_each_after_a_step_of_the_one_before(in_turn, at_first):
    begun, requests = [], [Later() for _ in range(3)]

    def strand(number):
        begun.append(number)
        yield [requests[number]]

    each = collective_programs.HostCollective(
        [strand(number) for number in range(3)], np.zeros(0), in_turn
    )
    driver = Driver()
    wait = handed_over(driver, each)
    assert begun == list(range(at_first))
    for request in requests:
        request.is_done = True
    assert wait() is None
    assert begun == [0, 1, 2]


def test_of_strands_that_begin_in_turn_few_are_under_way():
    class OncePolled(Later):
        def done(self):
            was, self.is_done = self.is_done, True
            return was

    under_way, at_once = set(), []

    def strand(number):
        under_way.add(number)
        for _ in range(10):
            at_once.append(len(under_way))
            yield [OncePolled()]
        under_way.remove(number)

    each = collective_programs.HostCollective(
        [strand(number) for number in range(9)], np.zeros(0), True
    )
    Driver().run(each, "a sum")
    assert len(at_once) == 90
    assert max(at_once) == 4
