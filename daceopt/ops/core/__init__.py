"""What all families of operators stand on: their registry, shape inference, folding, widening, interpretation."""
