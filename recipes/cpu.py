"""The recipe ``cpu``: fewer passes over memory, products in libraries, everything else in few vectorised kernels."""

from daceopt.passes.recipe import Recipe

PREPARATION = (
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
    "grouped-query-lifting",
    "rotary-lifting",
    "identity-removal",
    "pad-conv-fusion",
    "batch-norm-folding",
    "dead-code-elimination",
    # what has a gradient rule of its own is lowered after differentiation
    "lower-operators{keep_rules=True}",
    "tasklet-fusion",
    "relayout-fusion",
    "differentiate",
)
"""Up to the derivative: what recipes for this machine have in common, so that a choice among them runs it once."""

FUSION = (
    "lower-operators",
    "channels-last",  # before fusion, which looks at how the loops walk memory
    "product-transposition",
    "relayout-fusion",
    "product-precision",
    "map-fusion",
    "reduction-lowering",
    "epilogue-fusion",
    "cast-absorption",
    "part-writing",
)
"""Library calls with their epilogues, and fused kernels."""

LOOPS = (
    "scalar-expansion",
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
)
"""The loops of each kernel."""

cpu = Recipe(
    "cpu",
    (
        *PREPARATION,
        *FUSION,
        "memory-ordering",
        "transient-reuse",
        *LOOPS,
    ),
)
