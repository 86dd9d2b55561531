"""The recipe ``graphturbo-scratchpad``: layers are grouped, split into instances, ordered and placed in scratchpads.

GraphTurbo (Zhao et al., OSDI 2023, section 3), for the accelerators that ``daceopt.simulate`` simulates.
"""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.layer_wise import LAYERS

graphturbo_scratchpad = Recipe(
    "graphturbo-scratchpad",
    (*LAYERS, "instance-grouping", "instance-splitting", "instance-ordering", "core-binding"),
)
