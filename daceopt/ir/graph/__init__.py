"""The graph: nodes over arrays, who reads and writes what, in what order they run."""
