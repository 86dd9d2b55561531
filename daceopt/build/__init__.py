"""From a graph to a loaded native library: kernels printed, compiled in parallel, linked, cached, called.

Importing this package or the modules of its warm path (``cache``, ``manifest``, ``executable``, ``machine``) imports
neither DaCe nor SymPy: a warm start pays for neither.
"""
