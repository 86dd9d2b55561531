"""The recipe ``training``: for steps of forward and backward, whose bytes are those of activations."""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.cpu import ALGEBRA, CLEANUP, DERIVATIVE, FUSION, LIFTING, LOOPS, MEMORY

_PRODUCTS = "horizontal-product-fusion"

training = Recipe(
    "training",
    (
        *CLEANUP,
        *LIFTING,
        *(f"{_PRODUCTS}{{copied=1.0}}" if step == _PRODUCTS else step for step in ALGEBRA),
        *DERIVATIVE,
        *FUSION,
        *MEMORY,
        *LOOPS,
    ),
)
