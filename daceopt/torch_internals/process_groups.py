"""Groups of ``torch.distributed``: tensors sent together, and the store by which ranks find each other."""

from __future__ import annotations

from daceopt.torch_internals.release import private_names

with private_names():
    from torch.distributed import _broadcast_coalesced as broadcast_together
    from torch.distributed.distributed_c10d import _get_process_group_store as store_of

__all__ = ["broadcast_together", "store_of"]
