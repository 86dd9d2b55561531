"""The recipe ``cuda-kernels``: how kernels run on the blocks, warps and lanes of a CUDA device."""

from daceopt.passes.recipe import Recipe

cuda_kernels = Recipe(
    "cuda-kernels",
    (
        "device-placement{target='cuda'}",
        "loop-fusion",
        "register-promotion",
        "kernel-fission",
        "loop-fusion",  # of what is left
        "register-promotion",
        "loop-merging",
        "vectorization",  # the loop along which memory is walked, which neighbouring lanes then run
        "lane-vectors",  # a few neighbours for each lane: accesses of 16 bytes
        "block-mapping",
        "warp-tiling",
        "grid-mapping",
    ),
)
