"""Fusion by partition: micro-graphs, and how each is fused."""
