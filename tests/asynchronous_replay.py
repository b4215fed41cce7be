"""A replay, on one device, of what has happened at the homes of weights, in its order."""

import collections

import numpy as np

from tfdp.base.sharding import share_sizes


def replay(events, first, trained, num_ranks, rate=1.0, momentum=0.0):
    """Returns the last weights of each shard's home, one after the other, in float64.

    Args:
        events: For each shard what has happened there, in order.
        first: The first weights.
        trained: A function of a rank, the number of its round, and the weights that it begins
            with; it returns those with which the round ends. It is called once for each, in order.
        num_ranks: The number of ranks.
        rate, momentum: The outer ones.
    """
    ends = np.cumsum(share_sizes(len(first), num_ranks))
    spans = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    homes = [np.float64(first[span]) for span in spans]
    velocities = [np.zeros_like(home) for home in homes]
    # A rank asks again where a home was lost before it had the answer: the last one counts.
    takes_left = collections.Counter()
    rounds = collections.defaultdict(set)  # of a rank: those after which it has taken
    for shard, queue in enumerate(events):
        takes_left.update((e.rank, e.round, shard) for e in queue if e.kind == "take")
        for each in queue:
            if each.kind == "take":
                rounds[each.rank].add(each.round)
    taken = collections.defaultdict(dict)  # of a rank and a round: the weights of each shard
    changes = {}

    def begun(rank, number):
        """What a rank has taken after a round, if it has taken all.

        After a training all ranks go on with the number of the one that had the most rounds.
        """
        number = max(each for each in rounds[rank] if each <= number)
        done = all(takes_left[rank, number, shard] == 0 for shard in range(len(homes)))
        found = taken[rank, number]
        if not done or len(found) < len(homes):
            return None
        return np.concatenate([found[shard] for shard in range(len(homes))])

    def change(rank, number):
        if (rank, number) not in changes:
            begins = begun(rank, number - 1)
            if begins is None:
                return None
            changes[rank, number] = trained(rank, number, begins) - begins
        return changes[rank, number]

    queues = [collections.deque(queue) for queue in events]
    while any(queues):
        moved = False
        for shard, queue in enumerate(queues):
            while queue:
                event = queue[0]
                if event.kind == "push":
                    moves = change(event.rank, event.round)
                    if moves is None:
                        break
                    step = rate * moves[spans[shard]] / num_ranks
                    velocities[shard] = momentum * velocities[shard] + step
                    homes[shard] = homes[shard] + step + momentum * velocities[shard]
                elif event.kind == "take":
                    taken[event.rank, event.round][shard] = homes[shard]
                    takes_left[event.rank, event.round, shard] -= 1
                else:
                    if shard not in taken[event.rank, event.round]:
                        break
                    homes[shard] = taken[event.rank, event.round][shard]
                    velocities[shard] = np.zeros_like(homes[shard])
                queue.popleft()
                moved = True
        assert moved, [queue[0] for queue in queues if queue]
    return np.concatenate(homes)
