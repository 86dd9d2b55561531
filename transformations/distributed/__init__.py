"""Distributed training as rewrites: gradients are summed over all ranks, in buckets, while others are computed."""
