"""Control flow as nodes, and whole programs: forward, backward, and what their arrays are to the caller."""
