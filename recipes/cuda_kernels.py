"""The recipe ``cuda-kernels``: how kernels run on the blocks, warps and lanes of a CUDA device."""

from daceopt.passes.recipe import Recipe

PLACEMENT = ("device-placement{target='cuda'}",)
"""Where arrays live."""

SCHEDULES = (
    "loop-fusion{streams=1024}",  # lanes wait for memory in turns: there are no prefetchers
    "register-promotion",
    "kernel-fission",
    "grid-reduction",
    "loop-fusion{streams=1024}",  # of what is left
    "register-promotion",
    "loop-merging",
    "vectorization{volume=True}",  # the loop along which memory is walked, which neighbouring lanes then run
    "lane-vectors",  # a few neighbours for each lane: accesses of 16 bytes
    "block-mapping",
    "warp-tiling",
    "grid-mapping",
    "row-holding",  # what a block reads again stays in the registers of its lanes
)
"""How threads run the loops."""

cuda_kernels = Recipe("cuda-kernels", (*PLACEMENT, *SCHEDULES))
