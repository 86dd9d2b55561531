"""Models that benchmarks share; the demo's own are in ``daceopt.commands.demo``."""
