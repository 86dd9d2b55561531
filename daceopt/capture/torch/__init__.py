"""The way from a PyTorch call to a graph: Python by TorchDynamo, operators by ATen, imported directly."""
