"""What people really train and run, beside eager PyTorch and torch.compile: ``python -m benchmarks world``."""
