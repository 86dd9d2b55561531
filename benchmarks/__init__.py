"""Side-by-side runs against peers: `python -m benchmarks [names] [--quick]`. Only ratios of interleaved runs count."""
