"""Numbers that a process gives out once: in names of what TensorFlow's runtime tells by its name.

Functions, variables and queues of two names are two there, and of one name are the same. Other
processes give out other numbers, so nothing that they compare may hold one.
"""

import itertools

_numbers = itertools.count()


def unique_number() -> int:
    """Returns a number greater than all that this process was given before; any thread may ask.

    >>> unique_number() < unique_number()
    True
    """
    return next(_numbers)
