"""GraphTurbo (Zhao et al., OSDI 2023): instances of sub-graphs, which run one after the other in fast memory."""
