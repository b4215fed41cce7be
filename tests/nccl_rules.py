"""NCCL without a GPU: its rules for what ranks launch, and an engine that would ask for it.

The rules are those of TensorFlow's `nccl_manager.cc` and of NCCL, with a process for each rank:

- A group has a communicator of its own. A rank makes it as it launches the group's first
  collective, and launches nothing else until all members make it.
- What a rank launches goes to one stream, whatever the group. A collective ends once it is at the
  head of the stream of each of its members.
- A rank launches what its graph allows, in any order: TensorFlow's executor promises none.
"""

import collections

import pytest
import tensorflow as tf

from tfdp.communication.engines import tensorflow_engine

# Where an operation has its group key; its instance key is the next input.
_GROUP_KEY = {
    "CollectiveReduceV2": 2,
    "CollectiveGatherV2": 2,
    "CollectiveAllToAllV2": 2,
    "CollectiveBcastSendV2": 2,
    "CollectiveBcastRecvV2": 1,
}


@pytest.fixture
def as_nccl(monkeypatch):
    """Engines ask for NCCL, which TensorFlow ignores on CPUs: they run, and say what they ask."""

    def reduce_scatter(input, merge_op, final_op, **options):  # CPUs have no such kernel
        rows = tf.raw_ops.CollectiveAllToAllV2(input=input, **options)
        return tf.reduce_sum(rows, 0, keepdims=True)

    monkeypatch.setattr(tensorflow_engine, "communication_hint", lambda devices: "nccl")
    monkeypatch.setattr(tf.raw_ops, "CollectiveReduceScatterV2", reduce_scatter)


def launches(graph):
    """What each device launches by NCCL, in any order in which what is waited for goes first.

    Returns:
      For each device a list of collectives, each its keys and the keys of those it waits for.
    """
    definition = graph.as_graph_def()
    library = {each.signature.name: each.node_def for each in definition.library.function}
    found = collections.defaultdict(dict)

    def walk(nodes, before, caller=""):
        """Notes the collectives of a body that runs on its caller's device; returns their keys."""
        by_name = {node.name: node for node in nodes}
        done = {}

        def constant(name):
            node = by_name[name.split(":")[0]]
            return int(tf.make_ndarray(node.attr["value"].tensor))

        def ended(name):
            """The collectives that have ended when an operation has."""
            if name not in by_name:
                return before
            if name not in done:
                node = by_name[name]
                waits = set(before)
                for each in node.input:
                    waits |= ended(each.removeprefix("^").split(":")[0])
                own = set()
                if node.op in _GROUP_KEY and node.attr["communication_hint"].s == b"nccl":
                    at = _GROUP_KEY[node.op]
                    keys = constant(node.input[at]), constant(node.input[at + 1])
                    found[node.device or caller][keys] = waits
                    own = {keys}
                elif node.attr["f"].func.name:
                    device = node.device or caller
                    own = walk(library[node.attr["f"].func.name], waits, device)
                done[name] = waits | own
            return done[name]

        return set().union(*(ended(node.name) for node in nodes))

    walk(definition.node, set())
    return {
        device: [(keys, waits & of_device.keys()) for keys, waits in of_device.items()]
        for device, of_device in found.items()
    }


def ends(launched, rng):
    """Whether all collectives end, in one of the orders in which they may be launched."""
    members = collections.defaultdict(set)
    for device, own in launched.items():
        for (group, _), _ in own:
            members[group].add(device)
    todo = {device: list(own) for device, own in launched.items()}
    stream = {device: [] for device in launched}
    ended = {device: set() for device in launched}
    making, made = {}, set()
    while any(todo.values()) or any(stream.values()):
        moved = False
        for device in rng.sample(sorted(todo), len(todo)):
            ready = [] if device in making else [x for x in todo[device] if x[1] <= ended[device]]
            if not ready:
                continue
            moved, launch = True, rng.choice(ready)
            if launch[0][0] in made:
                todo[device].remove(launch)
                stream[device].append(launch[0])
            else:
                making[device] = launch[0][0]
        for group in set(making.values()):
            if all(making.get(device) == group for device in members[group]):
                moved = True
                made.add(group)
                making = {device: other for device, other in making.items() if other != group}
        for keys in {own[0] for own in stream.values() if own}:
            of_keys = members[keys[0]]
            if all(stream[device][:1] == [keys] for device in of_keys):
                moved = True
                for device in of_keys:
                    ended[device].add(stream[device].pop(0))
        if not moved:
            return False
    return True
