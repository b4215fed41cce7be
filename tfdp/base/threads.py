"""The threads of a process that take part in what all ranks must do in one order.

Ranks find each other's variables, traces and sums by their order. Between the threads of a process
it is left to chance, and so differs between ranks whose programs are alike.
"""

import threading

_names: list[str] = []
_lock = threading.Lock()


def is_of_program() -> bool:
    """Returns whether the calling thread is neither tfdp's own nor one of an eager replica."""
    thread = threading.current_thread()
    return not (thread.name.startswith("tfdp-") or hasattr(thread, "replica_id"))


def note() -> None:
    """Notes that the calling thread takes part."""
    name = threading.current_thread().name
    if is_of_program() and name not in _names:
        with _lock:
            _names.append(name)


def hint() -> str:
    """Returns what to add to an error that ranks differ; nothing where the main thread is alone."""
    note()
    with _lock:
        if _names == [threading.main_thread().name]:
            return ""
        return (
            f" Or are the ranks alike, and only the order of threads differs? Here {_listed()} "
            "made variables or ran steps: use one thread for that, or one after the other, in "
            "the same order on all ranks."
        )


def _listed() -> str:
    *others, last = (f"`{name}`" for name in _names)
    return f"the threads {', '.join(others)} and {last}" if others else f"the thread {last}"
