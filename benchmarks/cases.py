"""All benchmarks; importing this module registers them."""

from benchmarks import (
    calls,
    compilation,
    disco_search,
    importing,
    instances,
    kernels,
    memory,
    memory_budget,
    mixed_precision,
    networks,
    processes,
    scaling,
    stitching,
    suite,
    training,
    windows,
)

__all__ = [
    "calls",
    "compilation",
    "disco_search",
    "importing",
    "instances",
    "kernels",
    "memory",
    "memory_budget",
    "mixed_precision",
    "networks",
    "processes",
    "scaling",
    "stitching",
    "suite",
    "training",
    "windows",
]
