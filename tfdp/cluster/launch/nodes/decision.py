"""The decision when the ranks of all nodes have ended: another attempt, or the run's end."""

import dataclasses
from collections.abc import Sequence

from tfdp.cluster.launch.nodes.messages import How
from tfdp.cluster.launch.rank_process import STOPPED
from tfdp.cluster.launch.restarting import Decision, Restarts, announcement
from tfdp.cluster.launch.run_options import RunOptions


@dataclasses.dataclass(frozen=True)
class NodeEnd:
    """How the ranks of one node have ended.

    Attributes:
      name: The node's name.
      how: How they ended.
      code: The exit code.
      message: What the node says of it.
      is_consequence: Whether its ranks failed since ranks elsewhere were lost.
      lost: Whether the node itself was lost.
      serves: Whether the node serves the rendezvous, without which no run goes on.
    """

    name: str
    how: How
    code: int
    message: str
    is_consequence: bool = False
    lost: bool = False
    serves: bool = False

    @property
    def cause(self) -> str:
        """What went wrong, in a sentence without its end."""
        if self.lost:
            return "the launcher was lost"
        return self.message.partition("\n")[0].partition(". ")[0].rstrip(".")


def decide(
    ends: Sequence[NodeEnd], options: RunOptions, restarts: Restarts, stopped_for_nodes: bool
) -> Decision:
    """Returns what follows an attempt.

    Args:
      ends: How it ended on each node, in the order in which that was heard.
      options: The options of the run.
      restarts: The restarts of the run.
      stopped_for_nodes: Whether the rendezvous has asked for a stop, to let nodes in.

    >>> options = RunOptions(processes=1, command=("x.py",), max_restarts=1, nodes=2,
    ...                      rendezvous="a:1")
    >>> killed = NodeEnd("b", How.FAILED, 137, "rank 1 of 2 failed first, with signal SIGKILL. ...")
    >>> restarts = Restarts(1)
    >>> decide([killed, NodeEnd("a", How.TOLD, 1, "")], options, restarts, False).message
    'b: rank 1 of 2 failed first, with signal SIGKILL; all ranks start again in 1 s; restarts left
    after that: 0.'
    >>> decide([killed, NodeEnd("a", How.TOLD, 1, "")], options, restarts, False).code
    137
    """
    over = [end for end in ends if end.how is How.OVER]
    if over:
        return _finished(over[0].code, over[0])
    left = [end for end in ends if end.how is How.LEFT]
    least = options.span_of_nodes.least
    if left and (len(ends) - len(left) < least or any(end.serves for end in left)):
        code = STOPPED if any(end.how is How.STOPPED for end in ends) else left[0].code
        return _finished(code, left[0])
    wished = [end for end in ends if end.how is How.WISHED]
    if wished:
        return _finished(STOPPED, wished[0])
    failed = [end for end in ends if end.how is How.FAILED]
    if failed and not left:  # the failures of the others follow from one's leaving
        first = min(failed, key=lambda end: (not end.lost, end.is_consequence))
        pause = restarts.pause()
        if pause is None:
            return _finished(first.code, first)
        said = f"{first.name}: {first.cause}; {announcement(pause, restarts.left)}"
        return Decision(True, pause, 0, said)
    if left:
        return Decision(True, 0.0, 0, f"{left[0].name} has left; the other nodes go on.")
    resized = [end for end in ends if end.how is How.RESIZED]
    stopped = [end for end in ends if end.how is How.STOPPED]
    if resized or (stopped and stopped_for_nodes):
        return Decision(True, 0.0, 0, "the ranks start again in another number.")
    if stopped:
        return _finished(STOPPED, stopped[0])
    return Decision(False, 0.0, 0, "")


def _finished(code: int, end: NodeEnd) -> Decision:
    return Decision(False, 0.0, code, f"{end.name}: {end.cause}.")
