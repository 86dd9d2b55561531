"""Data-parallel training over torch.distributed: strategies, how they are found and enacted, and what they cost."""
