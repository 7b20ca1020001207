"""The learning rate of a step: a pure function of the recipe, so that nothing about it is saved."""

import math

from slotnorm.config import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up from `warmup_from` of the peak; then it halves every `half_life` steps, or follows a cosine."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (recipe.warmup_from + (1 - recipe.warmup_from) * step / recipe.warmup_steps)
    after = step - recipe.warmup_steps
    if recipe.half_life is not None:
        return recipe.learning_rate * math.pow(0.5, after / recipe.half_life)
    assert recipe.cosine_to is not None  # the recipe has exactly one of the two
    share = after / max(recipe.steps - recipe.warmup_steps, 1)
    return recipe.learning_rate * (recipe.cosine_to + (1 - recipe.cosine_to) * 0.5 * (1 + math.cos(math.pi * share)))


def adam_epsilon(recipe: Recipe, step: int) -> float:
    """Adam's epsilon for PyTorch's form of the update; the authors train some models with TensorFlow's.

    TensorFlow adds 1e-8 before the second moment's bias is corrected, which is 1e-8 / sqrt(1 - 0.999^t) after it.
    """
    if recipe.protocol == "authors" and recipe.model.authors_adam == "tensorflow":
        return 1e-8 / math.sqrt(1 - 0.999 ** (step + 1))
    return 1e-8
