"""The recipe ``gpu``: the way of ``cpu`` for tensors on a CUDA device, whose libraries are torch's own operators.

What is for a CPU's libraries and caches is left out: blocked layouts and weights as oneDNN wants them, factors split
for AMX.
The kernels are scheduled by ``cuda-kernels`` (Rausch et al., DaCeML, ICS 2022, section 5.4).
"""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.cpu import ALGEBRA, CLEANUP, DERIVATIVE, LIFTING, MEMORY
from daceopt.recipes.cuda_kernels import PLACEMENT, SCHEDULES

LIFTED = tuple("attention-lifting{narrow=True}" if step == "attention-lifting" else step for step in LIFTING)
"""Attention of narrow products as well, which a library has."""

ATTENTION = ("attention-fusing",)
"""Attention as one operation of a library, in both directions."""

FUSION = (
    "lower-operators",
    "layout-search{blocked=False}",  # cuDNN's convolutions on tensor cores have channels innermost, and copy others
    "bias-opening",
    "product-transposition",
    "relayout-fusion",
    "pool-opening",
    "map-fusion",
    "reduction-lowering",
    "epilogue-fusion",
    "cast-absorption",
    "part-writing",
    "input-to-constant",
)
"""Library calls with their epilogues, and fused kernels."""

gpu = Recipe("gpu", (*PLACEMENT, *CLEANUP, *LIFTED, *ALGEBRA, *ATTENTION, *DERIVATIVE, *FUSION, *MEMORY, *SCHEDULES))
