"""The face to PyTorch: optimized modules, how their calls are dispatched, and the backend of torch.compile."""
