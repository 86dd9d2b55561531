"""Which sub-graphs keep results of a simulated run out of a cluster's buffers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from daceopt.cost.simulator import Run
from daceopt.ir.graph.placements import LEVELS

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

_SHARED, _MEMORY = LEVELS.index("shared"), LEVELS[-1]


class SpillCharges:
    """The bytes of results that found no room in any buffer, charged to sub-graphs by their positions in the graph.

    ``running``: to the one whose instance runs when most else is in the shared buffer while the result waits; more of
    its instances need less room at once. ``reading``: to those that read the result; more of theirs let less of it
    wait. What no sub-graph runs or reads is charged to none.
    """

    def __init__(self, graph: Graph, run: Run):
        self.running: Counter[int] = Counter()
        self.reading: Counter[int] = Counter()
        self.total = 0
        homes = graph.instance_positions()
        at = [homes[layer.nodes[0]][0] if layer.nodes[0] in homes else None for layer in run.layers]
        lives_of, sizes = _look_up(run)
        for name in (n for n in run.spilled if run.placements[n].level == _MEMORY):
            self.total += sizes[name]
            lives = lives_of[name]
            fullest = max(range(lives[0], lives[-1] + 1), key=lambda k: run.occupancy[k][_SHARED])
            _charge(self.running, {at[fullest]}, sizes[name])
            _charge(self.reading, {at[k] for k in lives[1:]}, sizes[name])


def _look_up(run: Run) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The layers that write and read each array, in order, and the bytes of those that are written."""
    lives: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for k, layer in enumerate(run.layers):
        sizes.update(layer.writes)
        for name in dict.fromkeys((*layer.reads, *layer.writes)):
            lives.setdefault(name, []).append(k)
    return lives, sizes


def _charge(account: Counter[int], positions: set[int | None], size: int) -> None:
    account.update({k: size for k in positions if k is not None})
