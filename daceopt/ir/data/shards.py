"""How arrays are cut into parts for ranks; known without the graph, for warm starts."""

from __future__ import annotations


def shard_elements(elements: int, world: int) -> int:
    """How many elements of an array of so many each rank has; the last ranks fill up theirs."""
    return -(-elements // world)
