"""Measures Paceline against PyTorch, Keras and the machine's own peak: `python -m benchmarks`, from the root of the repository."""
