"""GraphTurbo (Zhao et al., OSDI 2023): groups of nodes run in instances that fit the memory they run in."""
