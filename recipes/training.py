"""The recipe ``training``: for steps of forward and backward, most bytes of which are those of activations.

Products that read one activation become one, forward and backward, also where their weights are parameters, which are
copied side by side in each step: where that copies no more bytes than it saves reads of activations. (A BERT layer of
2048 rows takes as long as before; the gradients of a Llama layer of 4096 rows move 5 % fewer bytes.)
Like its base it computes again what was fused before the derivative, and stores what is fused after it (Rausch et al.,
DaCeML, section 5.3); ``memory_budget`` is the option of ``differentiate`` that says how much.
"""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.cpu import ALGEBRA, ATTENTION, CLEANUP, DERIVATIVE, FUSION, LIFTING, LOOPS, MEMORY

_PRODUCTS = "horizontal-product-fusion"

training = Recipe(
    "training",
    (
        *CLEANUP,
        *LIFTING,
        *(f"{_PRODUCTS}{{copied=1.0}}" if step == _PRODUCTS else step for step in ALGEBRA),
        *ATTENTION,
        *DERIVATIVE,
        *FUSION,
        *MEMORY,
        *LOOPS,
    ),
)
