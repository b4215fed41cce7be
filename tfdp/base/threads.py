"""The threads of a process that take part in what all ranks must do in one order.

Ranks find each other's variables, traces and sums by their order. Between the threads of a process
it is left to chance, and so differs between ranks whose programs are alike.
"""

import threading

# Their names, in the order in which they took part; the order is that of the process.
_names: dict[str, None] = {}


def is_of_program() -> bool:
    """Returns whether the calling thread is neither tfdp's own nor one of an eager replica."""
    thread = threading.current_thread()
    return not (thread.name.startswith("tfdp-") or hasattr(thread, "replica_id"))


def note() -> None:
    """Notes that the calling thread takes part."""
    if is_of_program():
        _names[threading.current_thread().name] = None


def hint() -> str:
    """Returns what to add to an error that ranks differ; nothing where the main thread is alone."""
    note()
    names = list(_names)
    if names == [threading.main_thread().name]:
        return ""
    *others, last = (f"`{name}`" for name in names)
    who = f"the threads {', '.join(others)} and {last}" if others else f"the thread {last}"
    return (
        f" Or are the ranks alike, and only the order of threads differs? Here {who} made "
        "variables or ran steps: use one thread for that, or one after the other, in the same "
        "order on all ranks."
    )
