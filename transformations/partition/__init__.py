"""APOLLO (Zhao et al., MLSys 2022): the graph is partitioned by rules into what becomes one kernel each."""
