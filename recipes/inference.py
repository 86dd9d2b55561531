"""The recipe ``inference``: for programs that run often and are never differentiated.

What is constant is worked into the program once: folding may let constants grow, weights are put side by side, whatever
has one value is a literal (Rausch et al., DaCeML, section 5.1; the paper leaves the rest to inference frameworks, 6.2).
Nothing is kept for a derivative, so attention never holds its scores
(docs/decisions/014-carried-values.md); ``tune`` finds out whether that is faster.
"""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.cpu import ALGEBRA, CLEANUP, DERIVATIVE, FUSION, LIFTING, LOOPS, MEMORY

_FOLDING = "constant-folding{budget=16777216}"

inference = Recipe(
    "inference",
    (
        *(_FOLDING if step == "constant-folding" else step for step in CLEANUP),
        *LIFTING,
        *ALGEBRA,
        _FOLDING,  # what was put side by side
        "attention-tiling",
        *DERIVATIVE,  # which runs where gradients are wanted all the same
        *FUSION,
        *MEMORY,
        *LOOPS,
    ),
)
