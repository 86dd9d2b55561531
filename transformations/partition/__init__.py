"""Partition-based fusion: APOLLO (Zhao et al., MLSys 2022) in steps that can be used one by one."""
