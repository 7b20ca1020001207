"""A verb that writes, on a file system without room; run by test_full_disk.py in a namespace where it may mount.

    unshare --user --map-root-user --mount python tests/full_disk_verbs.py VERB FOLDER SET RUN

Prints how often it met a full disk. It must say one sentence, exit with 1 or 2, and be done when it is given
again after room was made.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import slotnorm.report.demo
import slotnorm.report.writing
import slotnorm.studies.run_evaluation
import slotnorm.training.loop  # noqa: F401  # imported here once, and not by each command
from slotnorm.cli.verbs import main

ROOM = 64 << 20
LEFT = (0, 4 << 10, 16 << 10, 60 << 10, 200 << 10)  # bytes that are free when a command starts
LONG = ("demo", "reproduce")  # these are tried with two of them
FIXTURES = Path(__file__).with_name("fixtures")


def commands(disk: Path, data: Path, run: Path, picture: Path) -> dict[str, list[str]]:
    """Every verb that writes but `data download`, whose full disk is a test of its own, with a server."""
    own, small = (
        disk / "own" / run.name,
        "--recipe.steps 4 --recipe.checkpoint-every 2 --recipe.batch-size 2 --recipe.validation-scenes 8",
    )
    words = {
        "train": f"--experiment {run}/experiment.json --data {data} --into {disk}/runs --log pictures csv",
        "sweep": f"toy --norms weighted_sum --seeds 1 {small} --data {disk.parent}/scenes --into {disk}/runs",
        "eval": f"{own} --dataset toy --data {data} --slots 3:5 --scenes 16",
        "report": f"{own} --out {disk}/report",
        "segment": f"{picture} --run {run} --slots 4 --out {disk}/segments",
        "demo": f"--scenes 2 --out {disk}/demo",
        "reproduce": f"toy --norms weighted_sum --seeds 1 --steps 2 --scenes 4 --slots 5,6 --jobs 1 --out {disk}/study",
        "data generate": f"--num 8 --size 32 --seed 1 --out {disk}/made",
        "data folder": f"--from {picture.parent.parent} --size 16 --out {disk}/photos",
        "data clevr": f"--from {FIXTURES}/clevr_with_masks_8.tfrecords --splits 4 2 2 --out {disk}/clevr",
        "data movi": f"--from {FIXTURES}/movi_c --variant c --split test --size 32 --out {disk}/movi",
        "data features": f"--from {data} --backbone run:{run} --out {disk}/features",
        "data check": f"{disk}/set",
    }
    return {verb: [*verb.split(), *options.split()] for verb, options in words.items()}


def start(arguments: list[str], output: Path) -> int:
    """A command in a process of its own; its exit code."""
    if (child := os.fork()) == 0:
        with open(output, "wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        code = 1
        try:
            main(arguments)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def prepare(disk: Path, data: Path, run: Path) -> None:
    """What the verbs work on, on the disk itself; an evaluated run."""
    for entry in disk.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(run, disk / "own" / run.name)
    shutil.copytree(data, disk / "set")


def fill(disk: Path, left: int) -> Path:
    filler = disk / "filler"
    with open(filler, "wb") as file:
        free = shutil.disk_usage(disk).free
        file.write(bytes(max(free - left, 0)))
    assert shutil.disk_usage(disk).free <= left + 8192
    return filler


def try_verb(verb: str, folder: Path, data: Path, run: Path) -> int:
    """Give the verb with little and with no room, then with enough; returns how often it met a full disk."""
    disk, log = folder / "disk", folder / "said.txt"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(disk)], check=True)
    os.environ["SLOTNORM_CACHE"] = str(disk / "cache")
    torch.set_num_threads(1)
    picture = folder / "pictures" / "images" / "picture.png"
    picture.parent.mkdir(parents=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)).save(picture)
    words = commands(disk, data, run, picture)
    if verb == "sweep":
        generate = f"data generate --objects 1:3 --num 80 --size 32 --style flat --out {folder}/scenes"
        assert start(generate.split(), log) == 0, log.read_text()
    if verb == "report":
        prepare(disk, data, run)
        assert start(words["eval"], log) == 0, log.read_text()
        shutil.copytree(disk / "own" / run.name / "rows", folder / "rows")
    full = 0
    for left in LEFT[:: 3 if verb in LONG else 1]:
        prepare(disk, data, run)
        if verb == "report":
            shutil.copytree(folder / "rows", disk / "own" / run.name / "rows")
        filler = fill(disk, left)
        code, sentence = start(words[verb], log), log.read_text()
        assert "Traceback" not in sentence, f"{verb} with {left} bytes free: {sentence}"
        if code:
            full += 1
            assert code in (1, 2), f"{verb} with {left} bytes free: exit code {code}: {sentence}"
            assert re.search("No space left on device|full|GB free", sentence), f"{verb}: {sentence}"
            assert not list(disk.rglob("*.tmp")), f"{verb} with {left} bytes free left {list(disk.rglob('*.tmp'))}"
        filler.unlink()
        again, sentence = start(words[verb], log), log.read_text()
        assert again == 0, f"{verb}, again after {left} bytes were free: exit code {again}: {sentence}"
    return full


if __name__ == "__main__":
    print(try_verb(sys.argv[1], *map(Path, sys.argv[2:5])))
