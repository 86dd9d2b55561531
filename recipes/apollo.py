"""The recipe ``apollo``: the graph is partitioned by rules into micro-graphs, which become one kernel each.

APOLLO (Zhao et al., MLSys 2022): pre-processing, opening of compound operators, aggregation (Table 1), memory stitching
(Table 2), what the rules of both leave open, and parallelism stitching (algorithm 3) of the kernels that come of it;
the rest is that of the recipe ``cpu``.
"""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.cpu import ALGEBRA, ATTENTION, CLEANUP, DERIVATIVE, LIFTING, LOOPS, MEMORY, RELUS

apollo = Recipe(
    "apollo",
    (
        *CLEANUP,
        *LIFTING,
        *ALGEBRA,
        *ATTENTION,
        *DERIVATIVE,  # up to here the steps of cpu, which a choice of both runs once
        # partition: softmax, normalizations, losses and updates become primitive kernels, and these micro-graphs
        "compound-opening",
        "layout-search",  # before fusion, which looks at how the loops walk memory
        "weight-packing",
        "product-transposition",
        "relayout-fusion",
        "product-precision",
        "cluster-extraction",
        "aggregation",
        "memory-stitching",
        "aggregation{rules='complementary'}",
        "polyhedral-fusion",  # Layer I where loops are not the same loops: windows, stencils, steps
        # what the partition leaves
        "reduction-lowering",
        "epilogue-fusion",
        "cast-absorption",
        "weight-narrowing",
        "part-writing",
        *RELUS,
        "map-fusion",  # of the numbers for each channel that epilogues take
        *MEMORY,
        *LOOPS,
        "parallelism-stitching",
    ),
)
