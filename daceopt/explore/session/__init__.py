"""Sessions: versions of a program, the sites of steps, comparisons, and what a session shows of itself."""
