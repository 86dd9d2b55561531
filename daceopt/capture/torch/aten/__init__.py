"""Rules for ATen operators, one file per family; loaded by ``table.py``."""
