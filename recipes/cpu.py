"""The recipe ``cpu``: fewer passes over memory, products in libraries, everything else in few vectorised kernels.

It goes the way of Rausch et al., DaCeML (ICS 2022), section 5.6; comments say which of the paper's steps a part is.
"""

from daceopt.passes.recipe import Recipe

CLEANUP = (
    # integers instead of what they stand for, before constants of it are folded into floats
    "quantized-products",
    "requantization-removal",
    # what is known before running, and what does nothing (Rausch et al., DaCeML, section 5.1: cleanup)
    "constant-folding",
    "uniform-folding",
    "identity-removal",
    "constant-folding",
    "cast-removal",
    "common-subexpressions",
)
"""What exporters leave behind."""

LIFTING = (
    # the operators that the author meant (5.1: lifting, algebraic fusion)
    "transpose-lifting",
    "vertical-einsum-fusion",
    "einsum-lifting",
    "softmax-lifting",
    "cross-entropy-lifting",
    "gelu-lifting",
    "silu-lifting",
    "mish-lifting",
    "layer-norm-lifting",
    "rms-norm-lifting",
    "attention-scale-folding",
    "attention-lifting",
    "grouped-query-lifting",
    "rotary-lifting",
)
"""From primitives to compound operators."""

ALGEBRA = (
    # the same with less (5.1: omitting operations, algebraic fusion)
    "algebraic-simplification",
    "stack-reduction",
    "relayout-chain-fusion",
    "identity-removal",
    "pad-conv-fusion",
    "pool-removal",
    "batch-norm-folding",
    "horizontal-product-fusion",  # of weights that are constants: others would be copied at each call
    "dead-code-elimination",
    "weight-flushing",
)
"""Fewer and larger operators."""

DERIVATIVE = (
    # what has a gradient rule of its own is lowered after differentiation; what is fused before it is computed again
    # (5.3)
    "lower-operators{keep_rules=True}",
    "tasklet-fusion",
    "relayout-fusion",
    "differentiate",
)
"""Kernels of what is differentiated, and its gradients."""

ATTENTION = ("attention-tiling{least=262144}",)
"""Attention without the scores of all pairs: where these are more than a core's cache keeps."""

PREPARATION = (*CLEANUP, *LIFTING, *ALGEBRA, *DERIVATIVE)
"""Up to the derivative: what recipes for this machine have in common, so that a choice among them runs it once."""

FUSION = (
    # the implementation of each operator (5.6, step 2) and its layouts (5.4)
    "lower-operators",
    "convolution-opening{taps=4}",  # over tokens: one pass over memory, for which a library copies to its layout first
    "layout-search",  # before fusion, which looks at how the loops walk memory
    "weight-packing",
    "pool-opening{slow=True}",  # of the layouts that were found
    "product-transposition",
    "relayout-fusion",
    # fewer passes over memory (5.2; 5.6, step 3)
    "product-precision",
    "map-fusion",
    "on-the-fly-fusion",
    "reduction-lowering",
    "epilogue-fusion",
    "cast-absorption",
    "weight-narrowing",
    "part-writing",
    "input-to-constant",  # last: a sum with a literal is no sum of arrays, which a library could add
)
"""Library calls with their epilogues, and fused kernels."""

FUSION_OF_WHOLE_IMAGES = tuple("layout-search{blocked=False}" if step == "layout-search" else step for step in FUSION)
"""The same for what cannot follow images in blocks of channels."""

RELUS = ("relu-absorption",)
"""Activations in convolutions, for programs that may run twice."""

MEMORY = ("residual-accumulation", "memory-ordering", "transient-reuse")
"""One buffer for arrays that are not alive at the same time (5.4)."""

LOOPS = (
    # the hardware: what computes beside what, in which order, by which unit (5.5; 5.6, steps 4 and 5)
    "index-set-splitting",
    "scalar-expansion",
    "micro-kernel-call",
    "loop-fusion",
    "loop-merging",
    "vectorization",
    "transposition-tiling",
    "reduction-ordering",
    "long-loop-splitting",
    "column-sum-splitting",
    "threading",
    "lane-sum-splitting",
    "register-promotion",
    "transposition-call",
    "weight-holding",
)
"""The loops of each kernel, and what calls in loops keep."""

cpu = Recipe("cpu", (*CLEANUP, *LIFTING, *ALGEBRA, *ATTENTION, *DERIVATIVE, *FUSION, *RELUS, *MEMORY, *LOOPS))
