"""Lowering: operators become kernels, views and library nodes."""
