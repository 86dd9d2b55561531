"""Library nodes, which stay whole until a library implements them, and the builder that lowerings write with."""
