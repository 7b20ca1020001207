"""Put runs into the package, for `slotnorm demo`: python docs/make_bundled.py RUN RUN ... [--half].

Each becomes src/slotnorm/bundled/NAME-NORM.safetensors with its model card; hashes.json lists the SHA-256 of all files.
With --half matrices are stored in half precision, which makes the files half as large; the card then says so.
"""

import json
import sys
from pathlib import Path

from slotnorm import files, weights
from slotnorm.bundle import HASHES, bundled_folder
from slotnorm.runs import Run


def bundle(runs: list[Path], folder: Path, half: bool = False) -> None:
    """Export the runs into `folder` and list all that it holds."""
    for path in runs:
        run = Run.open(path)
        made = run.export(folder / f"{run.experiment.name}-{run.experiment.norm}.safetensors")
        if half:
            whole, card = weights.unpack(made), made.with_suffix(".md").read_text(encoding="utf-8")
            tensors = {name: tensor.half() if tensor.dim() > 1 else tensor for name, tensor in whole.tensors.items()}
            smaller = weights.Weights(tensors, whole.experiment, whole.step, whole.facts)
            text = card.rpartition("\nSHA-256 of")[0]
            weights.export(smaller, made, f"{text}\nMatrices are stored in half precision.\n")
    listed = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".md"))
    hashes = {path.name: files.sha256(path) for path in listed}
    files.write(folder / HASHES, (json.dumps(hashes, indent=1) + "\n").encode())
    total = sum(path.stat().st_size for path in listed)
    print(f"{len(listed)} files, {total / 1e6:.2f} MB in {folder}")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--half"]
    bundle([Path(word) for word in words], bundled_folder(), "--half" in sys.argv)
