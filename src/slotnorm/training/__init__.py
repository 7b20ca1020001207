"""One training: an experiment becomes a run.

In comes an experiment; its scenes are found or made, the loop learns from them, and out goes a run: a folder with the
experiment, metrics, pictures and checkpoints, from which the same command continues bit for bit.
"""
