"""What ranks send to rank 0 beside the training, so that little of it is there at a time."""

from tfdp.cluster.control_channel import ControlChannel


def bring_to_first(board: ControlChannel, key: str, payload: bytes) -> list[bytes]:
    """Returns on rank 0 all ranks' payloads, in the order of ranks; elsewhere nothing.

    Rank 0 asks for them, and the others wait for that: what it has not asked for is not in its
    memory. All ranks must call it, in whatever thread.

    Args:
      board: The board of this process.
      key: What is sent, the same on all ranks; no two calls under way may have the same.
      payload: What this rank sends.

    Raises:
      RankLostError: A rank is lost.
      CollectiveTimeoutError: A rank does not come to this call in time.
    """
    asked = f"{key}?"
    if board.rank == 0:
        board.post(asked)
    board.wait(asked, [0], f"rank 0's word to send {key}")
    board.post_on_first(key, payload)
    if board.rank != 0:
        return []
    posts = board.wait(key, range(board.world_size), key)
    return [post.payload for post in posts.values()]
