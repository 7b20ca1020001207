"""What a process needs whatever it does: progress on stderr, signals, ranks, randomness by key, memory, plugins.

In come keys, signals and the environment of torchrun; out go random numbers that depend on their key alone, flags that
a loop reads once per step, and sums over ranks.
"""
