"""Save what test_generator.py compares with, after raising VERSION: python tests/save_generated_scenes.py."""

from pathlib import Path

import numpy as np

from slotnorm.data import generator
from test_generator import SPECS

saved = {"version": np.int64(generator.VERSION)}
for name in ("usual", "discs"):
    chunk = generator.render(SPECS[name], range(3))
    saved |= {f"{name}_images": chunk["images"], f"{name}_labels": chunk["labels"]}
np.savez_compressed(Path(__file__).parent / "fixtures" / "generated_scenes.npz", **saved)
