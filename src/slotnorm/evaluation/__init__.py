"""Scores of models on scenes while the number of slots varies.

In come a model and scenes; out go rows, one number per image, number of slots and metric, and the verdict on whether
the model's slots follow objects. Validation during training and evaluation after it are one engine.
"""
