"""The recipe ``layer-wise``: one kernel for each layer, whose result goes to memory; what GraphTurbo is compared with.

It says what computes and leaves out what is for the loops of a CPU, so it is for ``daceopt.simulate``.
"""

from daceopt.passes.recipe import Recipe
from daceopt.recipes.cpu import FUSION_OF_WHOLE_IMAGES, PREPARATION

# blocks of channels are for this machine's vectors, whatever is simulated
LAYERS = (*PREPARATION, *FUSION_OF_WHOLE_IMAGES)
"""Up to layers: products with their epilogues, and fused kernels."""

layer_wise = Recipe("layer-wise", LAYERS)
