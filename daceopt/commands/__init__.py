"""The commands of ``python -m daceopt``, one file each: ``arguments(parser)`` and ``run(options) -> exit status``."""
