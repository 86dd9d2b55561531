"""Data-parallel training over torch.distributed: strategies, their enactment, and what they cost."""
