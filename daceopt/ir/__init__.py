"""The graph that every room works on: what daceopt adds to DaCe's SDFG."""
