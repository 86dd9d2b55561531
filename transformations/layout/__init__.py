"""Layout transformations: how arrays lie in memory, chosen over the whole graph."""
