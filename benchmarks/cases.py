"""All benchmarks; importing this module registers them."""

from benchmarks import calls, compilation, kernels, networks, processes, scaling

__all__ = ["calls", "compilation", "kernels", "networks", "processes", "scaling"]
