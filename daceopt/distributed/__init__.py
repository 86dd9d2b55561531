"""Training on several ranks: what is fused and reduced together, decided by a search (DisCo)."""
