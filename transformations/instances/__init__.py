"""GraphTurbo (Zhao et al., OSDI 2023): sub-graphs are split into instances, which run one after the other in fast memory."""
