"""Cut loops into tiles, so that what a tile touches stays in a cache."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.errors import DaceoptError
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.edits.schedule_edits import loop_over, tile
from daceopt.ir.schedule.schedule import Tree, chain
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, named


@dataclass(frozen=True)
class MapTiling(KernelStep):
    """Split loops that are directly inside one another, the loops over blocks outside.

    before:  for i0 < n: for i1 < m: f(i0, i1)
    after:   for i0_block: for i1_block: for i0 < 32: for i1 < 32: f(32*i0_block + i0, 32*i1_block + i1)

    DaCe's ``MapTiling`` (Rausch et al., DaCeML, section 5.2). ``loops``: which; none: those at the top that are longer
    than a tile. ``size``: one for all of them, or one each. The last tiles may be partial.
    """

    size: int | tuple[int, ...] = 32
    loops: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = (self.size,) if isinstance(self.size, int) else self.size
        if any(n < 1 for n in sizes) or (len(sizes) != 1 and len(sizes) != len(named(self.loops))):
            raise DaceoptError(f"{self}: expected a size of 1 or more, for all loops or for each that is named")

    def edit(self, loops: KernelLoops) -> Tree | None:
        names = named(self.loops) or self._long(loops.tree)
        sizes = (self.size,) * len(names) if isinstance(self.size, int) else self.size
        tiles = {
            name: size for name, size in zip(names, sizes) if at_least(loop_over(loops.tree, name).extent, size + 1)
        }
        return tile(loops.tree, dict(tiles)) if tiles else None

    def _long(self, tree: Tree) -> tuple[str, ...]:
        assert isinstance(self.size, int)
        return tuple(str(loop.param) for loop in chain(tree)[0] if at_least(loop.extent, self.size + 1))
