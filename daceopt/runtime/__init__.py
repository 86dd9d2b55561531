"""What a compiled program needs while it runs: memory, random seeds, and its place in PyTorch's autograd."""
