"""Cases by what a user asks about: ``python -m benchmarks SUITE``."""

SUITES: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels",),
    "networks": ("networks-inference",),
    "training": ("networks-training", "networks-step"),
    "bfloat16": ("networks-inference-autocast", "networks-training-autocast"),
    "int8": ("networks-inference-int8",),
    "compile": ("compile-networks", "compile-time", "import-time"),
    "memory": ("peak-memory", "training-peak"),
    "calls": ("tiny-call",),
    "daceml": ("guided-operators", "guided-mbconv", "guided-bert", "daceml-networks"),
    "cuda": ("cuda-kernels", "cuda-inference", "cuda-training", "cuda-step", "cuda-call"),
}
"""Suite -> its cases. Cases that are in no suite measure a paper's tables, or one part of the house."""
