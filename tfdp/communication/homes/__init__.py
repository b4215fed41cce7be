"""Weights that have their home with the ranks, each of a shard, and ranks that do not wait."""

from tfdp.communication.homes.ranks_apart import RanksApart
from tfdp.communication.homes.shard_home import OuterUpdate
from tfdp.communication.homes.weight_homes import WeightHomes

__all__ = ["OuterUpdate", "RanksApart", "WeightHomes"]
