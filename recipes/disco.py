"""The recipe ``disco``: that of the cpu, and gradients averaged over ranks in buckets while others are computed.

DisCo (Yi et al., 2022): a strategy says the buckets (``tensor-fusion{buckets=...}``), their order and where they are
waited for. Without gradients to average its steps do nothing.
"""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.cpu import FUSION, LOOPS, MEMORY, PREPARATION

disco = Recipe(
    "disco",
    (
        *PREPARATION,
        *FUSION,
        "tensor-fusion",
        *MEMORY,
        *LOOPS,
        "collective-placement",  # last: what orders nodes by memory knows nothing of what is on its way
    ),
)
