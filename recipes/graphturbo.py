"""The recipe ``graphturbo``: sub-graphs run depth first, on as much at a time of the batch or an image as caches hold.

GraphTurbo (Zhao et al., OSDI 2023) on this machine: ``cpu`` up to fusion, then instances of sub-graphs: loops over
the batch, and rows of images.
"""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.cpu import FUSION_OF_WHOLE_IMAGES, LOOPS, MEMORY, PREPARATION, RELUS

graphturbo = Recipe(
    "graphturbo",
    (
        *PREPARATION,
        # products of the backward graph keep the batch outermost in memory, where it is cut; blocks of channels could
        # not be cut along channels
        *(step for step in FUSION_OF_WHOLE_IMAGES if step != "relayout-fusion"),
        *RELUS,
        # of what fusion has made, before its loops are scheduled: few large instances, and in them what caches hold
        "instance-loops{aim='memory'}",
        "instance-loops",
        # of one large image, some rows at a time
        "row-instances",
        *MEMORY,
        *LOOPS,
    ),
)
