"""Measures Paceline against PyTorch, Keras and the machine's own peak: `python -m benchmarks`."""
