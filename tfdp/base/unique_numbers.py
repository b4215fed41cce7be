"""Numbers that a process gives out once, in series: for names, keys and whatever needs one.

Functions, variables and queues of two names are two for TensorFlow's runtime, and of one name are
the same. Other processes give out other numbers, so what they compare may hold only those of a
series of its own, of which all take as many in one order.
"""

import collections
import threading

_given: collections.Counter[str] = collections.Counter()  # how many, by the name of the series
_lock = threading.Lock()


def unique_number(series: str = "names", count: int = 1) -> int:
    """Returns the first of `count` numbers in a row that this process was not given before.

    Any thread may ask. A series begins with 0.

    >>> unique_number("examples", count=3), unique_number("examples")
    (0, 3)
    """
    with _lock:
        first = _given[series]
        _given[series] += count
        return first
