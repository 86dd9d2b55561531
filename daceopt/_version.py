"""The version, in one place: read by setup and by ``daceopt.__version__``."""

__version__ = "0.2.0.dev0"
