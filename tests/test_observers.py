"""Observers: told of everything, able to change nothing; one that raises is named and the training goes on."""

import contextlib
import csv
import importlib.util
import json
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import processes
import tiny
from slotnorm.cli import verbs
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.storage.fingerprints import fingerprint
from slotnorm.studies.options import Training, words
from slotnorm.training import observers as observers_module
from slotnorm.training.experiment_file import write_experiment
from slotnorm.training.loop import Interrupted, train
from slotnorm.training.observers import Observer, Observers, WeightsAndBiases, make_observers, observers
from slotnorm.training.pictures import Picture
from slotnorm.training.runs import Run


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return tiny.build_scenes(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, scenes: Scenes) -> Run:
    """A training that nobody observes."""
    return train(tiny.experiment(), tmp_path_factory.mktemp("plain"), data=scenes.directory)


class Diary(Observer, registered=False):
    name = "diary"

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def on_start(self, run: Run, step: int) -> None:
        self.entries.append(("start", run.name, step))

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        self.entries.append(("step", step, sorted(numbers)))

    def on_validation(self, step: int, scores: dict[str, float]) -> None:
        self.entries.append(("validation", step, len(scores)))

    def on_picture(self, step: int, picture: Picture) -> None:
        self.entries.append(("picture", step, picture.masks.shape))

    def on_checkpoint(self, step: int, path: Path) -> None:
        self.entries.append(("checkpoint", step, path.is_file()))

    def on_end(self, step: int, finished: bool) -> None:
        self.entries.append(("end", step, finished))


NUMBERS = ["gradient_norm", "learning_rate", "loss"]


def test_an_observer_hears_of_everything_in_order(tmp_path: Path, scenes: Scenes) -> None:
    diary = Diary()
    train(tiny.experiment(), tmp_path, data=scenes.directory, observers=[diary])
    assert diary.entries == [
        ("start", "toy-weighted_sum-1", 0),
        ("step", 2, NUMBERS), ("step", 4, NUMBERS), ("checkpoint", 4, True),
        ("step", 6, NUMBERS), ("validation", 6, 6), ("picture", 6, (6, 12, 8, 8)),
        ("step", 8, NUMBERS), ("checkpoint", 8, True), ("step", 10, NUMBERS),
        ("step", 12, NUMBERS), ("validation", 12, 6), ("picture", 12, (6, 12, 8, 8)), ("checkpoint", 12, True),
        ("end", 12, True),
    ]  # fmt: skip


def same_run(run: Run, plain: Run) -> bool:
    """Whether two runs have the same bits: weights, optimizer state, and metrics."""
    weights = [fingerprint(each.weights().tensors) for each in (run, plain)]
    names = ("metrics.jsonl", "checkpoints/step-12.optimizer.safetensors")
    same_files = all((run.path / name).read_bytes() == (plain.path / name).read_bytes() for name in names)
    return weights[0] == weights[1] and same_files


class Vandal(Observer, registered=False):
    """Changes all that it is given, every random number that there is, and what torch computes with."""

    name = "vandal"

    def on_step(self, step: int, numbers: dict[str, float]) -> None:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        torch.rand(10)
        torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        numbers["loss"] = 7.0
        numbers.clear()

    def on_validation(self, step: int, scores: dict[str, float]) -> None:
        scores.clear()

    def on_picture(self, step: int, picture: Picture) -> None:
        assert picture.images is not None
        assert picture.reconstruction is not None
        for array in (picture.images, picture.masks, picture.reconstruction):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0


def test_no_observer_changes_a_bit_of_a_run(tmp_path: Path, scenes: Scenes, plain: Run) -> None:
    asked = [Vandal(), Diary(), "pictures", "csv", "tensorboard"]
    run = train(tiny.experiment(), tmp_path, data=scenes.directory, observers=asked)
    assert same_run(run, plain)
    assert sorted(path.name for path in plain.path.iterdir()) == ["checkpoints", "experiment.json", "metrics.jsonl"]


@pytest.mark.parametrize("event", ["start", "step", "validation", "picture", "checkpoint", "end"])
def test_an_observer_that_raises_is_named_and_does_not_end_the_training(
    tmp_path: Path, scenes: Scenes, plain: Run, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    class Clumsy(Observer, registered=False):
        name = "clumsy"

    def fail(self: Observer, *facts: Any) -> None:
        calls.append(event)
        raise OSError("no space left")

    setattr(Clumsy, f"on_{event}", fail)
    diary = Diary()
    run = train(tiny.experiment(), tmp_path, data=scenes.directory, observers=[Clumsy(), diary])
    sentence = f"the observer clumsy fails at on_{event} (OSError: no space left) and is told nothing more"
    assert [sentence in message for message in caplog.messages].count(True) == 1
    assert len(calls) == 1
    assert diary.entries[-1] == ("end", 12, True)
    assert same_run(run, plain)


def test_an_observer_that_exits_does_not_end_the_training(
    tmp_path: Path, scenes: Scenes, plain: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Leaving(Observer, registered=False):
        name = "leaving"

        def on_step(self, step: int, numbers: dict[str, float]) -> None:
            sys.exit("nothing\nmore")

    run = train(tiny.experiment(), tmp_path, data=scenes.directory, observers=[Leaving()])
    (warning,) = [message for message in caplog.messages if "leaving" in message]
    assert (
        "fails at on_step (SystemExit: nothing\\nmore) and is told nothing more; the training goes on (test_obs"
        in warning
    )
    assert same_run(run, plain)


def test_an_observer_that_cannot_be_made_is_one_sentence_before_anything_starts(tmp_path: Path, scenes: Scenes) -> None:
    class Demanding(Observer, registered=False):
        name = "demanding"

        def __init__(self, project: str) -> None: ...

    class Failing(Observer, registered=False):
        name = "failing"

        def __init__(self) -> None:
            raise OSError("no key")

    class PartOfAPackage(Observer, registered=False):
        name, package = "part", "not_installed_here.inside"

    for observer, sentence in (
        (
            Demanding,
            "the observer demanding cannot be made: TypeError: .* missing 1 required positional argument: 'proj",
        ),
        (Failing, r"the observer failing cannot be made: OSError: no key \(test_observers.py, line \d+\); mend it, or"),
        (PartOfAPackage, "the observer part needs the package not_installed_here.inside, which is not installed"),
    ):
        with _registered(observer), pytest.raises(UserError, match=sentence):
            train(tiny.experiment(), tmp_path, data=scenes.directory, observers=[observer.name])
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def _registered(observer: type[Observer]) -> Iterator[None]:
    """Known by its name for a while."""
    known = observers_module._registry._classes
    known[observer.name] = observer
    try:
        yield
    finally:
        del known[observer.name]


def test_an_observer_hears_the_end_of_a_training_that_is_stopped(tmp_path: Path, scenes: Scenes) -> None:
    class Impatient(Diary, registered=False):
        def on_step(self, step: int, numbers: dict[str, float]) -> None:
            signal.raise_signal(signal.SIGTERM)

    diary = Impatient()
    with pytest.raises(Interrupted):
        train(tiny.experiment(), tmp_path, data=scenes.directory, observers=[diary])
    assert diary.entries[-2:] == [("checkpoint", 3, True), ("end", 3, False)]


def test_pictures_are_made_only_where_somebody_listens() -> None:
    class Deaf(Observer, registered=False):
        name = "deaf"

    assert not Observers([Deaf()]).want_pictures
    assert Observers([Deaf(), Diary()]).want_pictures


def expected_table(run: Run) -> list[tuple[int, str, float]]:
    """What metrics.jsonl says, as loggers call it."""
    table = []
    for row in run.metrics():
        numbers = row.get("validation") or {name: value for name, value in row.items() if name != "step"}
        group = "validation" if "validation" in row else "training"
        table += [(row["step"], f"{group}/{name}", value) for name, value in numbers.items()]
    return table


def read_csv(run: Run) -> list[tuple[int, str, float]]:
    with open(run.path / "metrics.csv", newline="") as file:
        return [(int(row["step"]), row["metric"], float(row["value"])) for row in csv.DictReader(file)]


def test_the_csv_file_has_what_the_metrics_have_also_after_a_resume(tmp_path: Path, scenes: Scenes) -> None:
    run = train(tiny.experiment(steps=8), tmp_path, data=scenes.directory, observers=["csv"])
    with open(run.path / "metrics.csv", "a") as file:
        file.write(
            "10,training/loss,1.0\n10,trai"
        )  # a process that died behind the checkpoint, in the middle of a line
    run = train(tiny.experiment(steps=12), tmp_path, data=scenes.directory, observers=["csv"])
    assert read_csv(run) == expected_table(run)


def test_tensorboard_has_what_the_metrics_have_also_after_a_resume(tmp_path: Path, scenes: Scenes) -> None:
    train(tiny.experiment(steps=8), tmp_path, data=scenes.directory, observers=["tensorboard"])
    run = train(tiny.experiment(steps=12), tmp_path, data=scenes.directory, observers=["tensorboard"])
    script = f"""
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator({str(run.path / "tensorboard")!r}, size_guidance={{"scalars": 0, "images": 0}})
events.Reload()
tags = events.Tags()
table = [(event.step, tag, event.value) for tag in tags["scalars"] for event in events.Scalars(tag)]
print(json.dumps([table, [event.step for event in events.Images("validation/picture")]]))
"""
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    table, pictures = json.loads(printed)
    single = [[step, name, float(np.float32(value))] for step, name, value in expected_table(run)]
    assert sorted(table) == sorted(single)
    assert pictures == [6, 8, 12]


STAND_IN = '''
"""Stands for wandb: writes down what it is asked."""
import json
from pathlib import Path


class Settings:
    def __init__(self, **settings):
        self.settings = settings


class Image:
    def __init__(self, picture):
        self.size = picture.size


class Run:
    def __init__(self, path):
        self.path = path

    def log(self, numbers, step):
        shown = {name: list(value.size) if isinstance(value, Image) else value for name, value in numbers.items()}
        self.write({"step": step, **shown})

    def finish(self, exit_code):
        self.write({"exit_code": exit_code})

    def write(self, entry):
        with open(self.path, "a") as file:
            print(json.dumps(entry), file=file)


def init(*, dir, settings, **how):
    run = Run(Path(dir) / "stand-in.jsonl")
    run.write({**how, "settings": settings.settings})
    return run
'''


def test_weights_and_biases_is_offline_unless_asked(
    tmp_path: Path, scenes: Scenes, plain: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)  # the real one, if a test before imported it
    run = train(tiny.experiment(), tmp_path, data=scenes.directory, observers=["wandb"])
    del sys.modules["wandb"]
    assert same_run(run, plain)
    begin, *logged, end = map(json.loads, (run.path / "stand-in.jsonl").read_text().splitlines())
    assert (begin["mode"], begin["name"], begin["resume"]) == ("offline", "toy-weighted_sum-1", "allow")
    assert begin["config"]["recipe"]["steps"] == 12
    assert end == {"exit_code": 0}
    pictures = [entry for entry in logged if "validation/picture" in entry]
    assert [entry["step"] for entry in pictures] == [6, 12]
    numbers = [(entry.pop("step"), entry) for entry in logged if entry not in pictures]
    assert [(step, name, value) for step, entry in numbers for name, value in entry.items()] == expected_table(run)
    assert WeightsAndBiases(mode="online").mode == "online"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert WeightsAndBiases().mode == "online"


def test_the_real_weights_and_biases_trains_offline_the_same_bits(tmp_path: Path, scenes: Scenes, plain: Run) -> None:
    """Where it is installed: `pip install 'slotnorm[wandb]'`."""
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    write_experiment(tmp_path / "asked.json", tiny.experiment())
    asked = words(Training(tiny.experiment(), tmp_path, scenes.directory, log=("wandb",)), tmp_path / "asked.json")
    command = [sys.executable, "-m", "slotnorm", "train", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fails at" not in done.stderr
    run = Run.open(tmp_path / "toy-weighted_sum-1")
    assert same_run(run, plain)
    (recorded,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    history = read_wandb(recorded)
    assert history.pop("validation/picture/_type") == {6: "image-file", 12: "image-file"}
    logged = {(step, name, value) for name, values in history.items() for step, value in values.items()}
    assert logged.issuperset(expected_table(run))


def read_wandb(path: Path) -> dict[str, dict[int, Any]]:
    """Name -> step -> value of a file that Weights & Biases wrote: records in blocks, each a protocol buffer."""
    from wandb.proto import wandb_internal_pb2

    content, history = path.read_bytes(), dict[str, dict[int, Any]]()
    place, block, header, parts = 7, 1 << 15, 7, b""
    while place + header <= len(content):
        if block - place % block < header:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record, parts = wandb_internal_pb2.Record.FromString(parts), b""
            entry = {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in entry.items():
                history.setdefault(name, {})[entry["_step"]] = value
    return history


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_one_sentence_before_anything_starts(
    tmp_path: Path, scenes: Scenes, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(observers()[name], "package", "package_that_nobody_has")
    write_experiment(tmp_path / "asked.json", tiny.experiment())
    asked = words(
        Training(tiny.experiment(), tmp_path / "runs", scenes.directory, log=(name,)), tmp_path / "asked.json"
    )
    for verb in ("train", "sweep"):
        with pytest.raises(SystemExit) as ended:
            verbs.main([verb, *asked])
        assert ended.value.code == 2
        printed = capsys.readouterr().err
        sentence = f"the observer {name} needs the package package_that_nobody_has, which is not installed"
        assert printed == f"slotnorm: {sentence}: pip install 'slotnorm[{name}]'\n"
    assert not (tmp_path / "runs").exists()


def test_an_unknown_observer_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UserError, match="there is no observer 'tensorbord'; did you mean 'tensorboard'?"):
        make_observers(["tensorbord"])
    with pytest.raises(UserError, match="is neither an Observer nor the name of one"):
        make_observers([Diary])  # type: ignore[list-item]
    assert len(make_observers(["csv", "csv"])) == 1


PLUGIN = '''
from slotnorm.training.observers import Observer


class Counter(Observer):
    """RUN/count.txt: how many lines of training there were."""

    name = "counter"

    def on_start(self, run, step):
        self.path, self.count = run.path / "count.txt", 0

    def on_step(self, step, numbers):
        self.count += 1

    def on_end(self, step, finished):
        self.path.write_text(str(self.count))
'''


def test_an_observer_from_a_plugin_is_named_by_log(tmp_path: Path, scenes: Scenes) -> None:
    (tmp_path / "counter.py").write_text(PLUGIN)
    write_experiment(tmp_path / "asked.json", tiny.experiment())
    training = Training(tiny.experiment(), tmp_path / "runs", scenes.directory, log=("counter", "csv"))
    asked = [*words(training, tmp_path / "asked.json"), "--plugin", str(tmp_path / "counter.py")]
    command = processes.Command(["train", *asked], tmp_path / "log")
    assert command.wait() == 0, command.said
    assert (training.path / "count.txt").read_text() == "6"
    assert (training.path / "metrics.csv").is_file()
    assert sorted(path.name for path in (training.path / "pictures").iterdir()) == ["step-12.png", "step-6.png"]
