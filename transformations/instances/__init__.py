"""GraphTurbo: networks split into instances of sub-graphs, ordered and placed for the memory they run in."""
