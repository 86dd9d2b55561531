"""The recipe ``apollo``: the graph is partitioned by rules into micro-graphs, which become one kernel each.

APOLLO (Zhao et al., MLSys 2022): pre-processing, opening of compound operators, aggregation (Table 1), memory stitching
(Table 2), what the rules of both leave open, and parallelism stitching (algorithm 3) of the kernels that come of it;
the rest is that of the recipe ``cpu``.
"""

from daceopt.passes.recipe import Recipe

apollo = Recipe(
    "apollo",
    (
        # coarse: the operators that the author meant, and nothing that is known before running
        "constant-folding",
        "uniform-folding",
        "identity-removal",
        "constant-folding",
        "common-subexpressions",
        "transpose-lifting",
        "softmax-lifting",
        "gelu-lifting",
        "layer-norm-lifting",
        "rms-norm-lifting",
        "attention-scale-folding",
        "attention-lifting",
        "identity-removal",
        "pad-conv-fusion",
        "batch-norm-folding",
        "dead-code-elimination",
        # what has a gradient rule of its own is lowered after differentiation
        "lower-operators{keep_rules=True}",
        "tasklet-fusion",
        "differentiate",
        # partition: softmax, normalizations, losses and updates become primitive kernels, and these micro-graphs
        "compound-opening",
        "channels-last",  # before fusion, which looks at how the loops walk memory
        "product-transposition",
        "cluster-extraction",
        "aggregation",
        "memory-stitching",
        "aggregation{rules='complementary'}",
        "polyhedral-fusion",  # Layer I where loops are not the same loops: windows, stencils, steps
        # what the partition leaves
        "reduction-lowering",
        "epilogue-fusion",
        "part-writing",
        "memory-ordering",
        "transient-reuse",
        # the loops of each kernel
        "tile-scheduling",
        "loop-fusion",
        "loop-merging",
        "vectorization",
        "transposition-tiling",
        "reduction-ordering",
        "long-loop-splitting",
        "threading",
        "lane-sum-splitting",
        "register-promotion",
        "parallelism-stitching",
    ),
)
