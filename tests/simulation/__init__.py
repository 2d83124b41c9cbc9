"""A deterministic simulation of the protocol: the real code on a simulated clock, network, disk and
store. `python -m tests.simulation --help` plays histories; `history` is the place to start reading.
"""
