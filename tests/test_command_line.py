"""The command line as a newcomer types it: help that reads, short names, and one style of refusal."""

import contextlib
import dataclasses
import errno
import io
import json
import logging
import os
import re
import resource
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
import torch

import processes
import slotnorm
import tiny
from slotnorm.cli import dispatch, verbs
from slotnorm.cli.parsing import parse
from slotnorm.cli.signatures import POSITIONAL, Argument, of_dataclass, of_function, rebuilt
from slotnorm.cli.training_options import parse_sweep, parse_training
from slotnorm.cli.values import read_numbers, read_range
from slotnorm.errors import UserError
from slotnorm.experiments import experiment, studies
from slotnorm.runtime import torch_internals
from slotnorm.storage.serialization import to_document
from slotnorm.studies.options import Training
from slotnorm.training.experiment_file import read_experiment, write_experiment
from slotnorm.training.loop import train
from slotnorm.training.runs import Run


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence that a command ends with."""
    with pytest.raises(SystemExit) as ended:
        verbs.main(list(words))
    printed, sentence = capsys.readouterr()
    assert ended.value.code == 2
    assert printed == ""
    assert sentence.startswith("slotnorm: ")
    assert sentence.count("\n") == 1
    return sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("eval", "slotnorm eval needs RUNS (folders of runs, or folders that hold them)"),
        ("report", "slotnorm report needs RUNS"),
        ("segment photo.png", "slotnorm segment needs --run (a run's folder"),
        (
            "segment",
            "slotnorm segment needs IMAGE (a PNG, JPEG, WebP, TIFF or BMP file of any size, or a folder of",
        ),
        ("reproduce", "slotnorm reproduce needs NAME"),
        ("eval runs --slots 8:3", "--slots is '8:3', but 8 is more than 3: write 3:8"),
        ("eval runs --slots many", "--slots is 'many', which is not numbers: write FIRST:LAST (both included)"),
        ("eval runs --slots 1:999999999", "which is more than 10,000 numbers; ask for fewer"),
        ("eval runs --objects 3,6", "--objects is '3,6', a list where a range is meant: write FEWEST:MOST"),
        ("eval runs --objects 6:3", "--objects is '6:3', but 6 is more than 3: write 3:6"),
        ("eval runs --sl 3", "slotnorm eval has no option --sl; did you mean '--slots'?"),
        ("eval runs --batch-size", "--batch-size needs a value: --batch-size INT"),
        ("eval runs --unfinished=yes", "--unfinished is a switch and takes no value; leave out =yes"),
        ("eval -x runs", "slotnorm eval has no option -x"),
        ("train toy --slots five", "--slots is 'five', but must be a whole number"),
        ("train toy --slots 5,10", "--slots is '5,10', but one number is meant: write --slots 5"),
        (
            "segment a.png --run x --slots 3:5",
            "--slots is '3:5', but an image is segmented once: give one number, or auto",
        ),
        ("train toy --seed 1:3", "--seed is '1:3', but one number is meant: write --seed 1"),
        ("train toy --lr fast", "--lr is 'fast', but must be a number"),
        ("train toy --lr nan", "--lr is 'nan', but must be a finite number"),
        ("train toy --lr", "--lr needs a value: --lr FLOAT"),
        ("train toy --clip 1", "has no option --clip; did you mean '--recipe.clip'?"),
        ("train toy --step 50", "has no option --step; did you mean '--steps'?"),
        ("train toy --steps 0", "recipe.steps is 0"),
        ("train toy --recipe.flip maybe", "--recipe.flip is 'maybe', but must be True or False"),
        ("train toy --recipe.precision float8", "--recipe.precision is 'float8'; did you mean 'float32'?"),
        ("train toy --scenes.objects 1 2 3", "--scenes.objects has 3 values, but needs 2: --scenes.objects INT INT"),
        ("train toy batch_norm", "slotnorm train toy has no use for 'batch_norm'"),
        ("train toy --norm=", "--norm is empty, but needs a value"),
        (
            "train --norm batch_norm",
            "slotnorm train needs an experiment: its name, as in slotnorm train toy, or --exper",
        ),
        ("train toy --plugin none.py", "there is no file none.py, which --plugin names"),
        ("sweep toy --seeds 3:1", "--seeds is '3:1', but 3 is more than 1: write 1:3"),
        ("data generate --num 3", "slotnorm data generate needs --out (where the set is built"),
        ("data movi --variant f", "--variant is 'f'; known are: a, b, c, d, e"),
        ("theory toy", "slotnorm theory has no use for 'toy'"),
        ("train toy --scenes.objects 2,4", "--scenes.objects is '2,4', a list where a range is meant: write FEWEST"),
        ("train toy --scenes.radius 0.2", "--scenes.radius has 1 value, but needs 2: --scenes.radius FLOAT FLOAT"),
        ("train toy -n batch_norm", "slotnorm train toy has no option -n; slotnorm train toy --help lists them"),
        ("train toy \u2014norm batch_norm", "slotnorm train toy has no option \u2014norm; did you mean '--norm'?"),
        ("train toy \u2013\u2013lr 1", "slotnorm train toy has no option \u2013\u2013lr; did you mean '--lr'?"),
        (
            "theory --seed 99999999999999999999999",
            "seed is 99999999999999999999999, but must be at most 9,223,",
        ),
        ("theory --seed -1", "seed is -1, but must not be negative"),
        ("train toy --seed 9223372036854775808", "seed is 9223372036854775808, but must be at most 9,223,372,036,854,"),
        ("train toy --slots 99999999999", "slots is 99999999999, but must be at most 4,096"),
        ("train toy --steps 9" + 400 * "0", "00, but must be at most 1,000,000,000"),
        ("train toy --into nowhere --workers -1", "--workers is -1, but must not be negative; 0 reads batches when"),
        ("sweep toy --device gpu --plan", "there is no device 'gpu'; known are: auto, cpu, cuda, mps"),
        ("eval runs --batch-size 0", "--batch-size is 0, but must be at least 1"),
        ("segment photo.png --run x --slots Auto", "--slots is 'Auto', but must be a whole number, or auto"),
        ("--device cpu train toy", "--device stands before the verb, but options come behind it: slotnorm VERB --d"),
        ("data --size 3 generate", "--size stands before the verb, but options come behind it: slotnorm data VERB"),
        ("train --experiment a.json --experiment=b.json", "--experiment is given twice, at first with 'a.json'"),
        ("train own --data a --data b", "--data is given twice, at first with 'a'; give it once"),
        ("sweep toy --on local --on slurm", "--on is given twice, at first with 'local'; give it once"),
        ("--verison", "there is no slotnorm '--verison'; did you mean '--version'?"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = words.replace("data movi", "data movi --from x --split test")
    assert sentence in refused(capsys, *words.split())


@pytest.mark.parametrize("command", ["train toy --steps 1 --into", "demo --scenes 1 --out", "eval --csv"])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    if command.startswith("eval"):
        data = tiny.build_scenes(tmp_path / "set").directory
        run = train(tiny.experiment(steps=1), tmp_path / "runs", data=data)
        command = f"eval {run.path} --data {data} --dataset mine --slots 4 --scenes 2 --csv"
        with pytest.raises(SystemExit) as ended:
            verbs.main([*command.split(), str(tmp_path / "file" / "rows.csv")])
        assert ended.value.code == 2
        assert f"cannot write {tmp_path / 'file' / 'rows.csv'}" in capsys.readouterr().err
        return
    assert str(tmp_path / "file") in refused(capsys, *command.split(), str(tmp_path / "file"))


def test_a_refused_device_or_number_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(tmp_path / "made")
    for words in ("demo --device gpu --out", "train toy --workers -1 --into", "sweep toy --device gpu --into"):
        refused(capsys, *words.split(), where)
    assert not list(tmp_path.iterdir())


def test_a_backbone_that_almost_has_a_bundled_name_is_refused_with_that_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.build_scenes(tmp_path / "set", 2)
    sentence = refused(
        capsys, "data", "features", "--from", str(tmp_path / "set"), "--backbone", "toy-batch_nrm", "--out", "x"
    )
    assert "the network toy-batch_nrm needs --weights" in sentence
    assert "did you mean 'toy-batch_norm', which has its own?" in sentence


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (
            MemoryError("Unable to allocate 572. GiB for an array of shape (2, 9)"),
            "572. GiB for an array of shape (2, 9)",
        ),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error"
            ),
            "you tried to allocate 9 bytes",
        ),
        (
            type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"),
            "CUDA out of memory",
        ),
    ],
)
def test_too_little_memory_is_one_sentence_and_another_error_is_not(
    error: Exception, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def grow() -> None:
        raise error

    def stumble() -> None:
        raise RuntimeError("an error of ours")

    with pytest.raises(SystemExit) as ended:
        dispatch.run({"grow": grow}, ["grow"])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("slotnorm: there is not enough memory (")
    assert printed.endswith(f"{asked}); ask for fewer slots, or a smaller batch\n")
    with pytest.raises(RuntimeError, match="an error of ours"):
        dispatch.run({"stumble": stumble}, ["stumble"])


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.EMFILE, "Too many open files", "x.npy"),
            "cannot open x.npy: Too many open files; raise the limit",
        ),
        (OSError(errno.ENFILE, "Too many open files in system"), "cannot go on: Too many open files in system; close"),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            "unavailable; raise the limit on processes",
        ),
        (RuntimeError("can't start new thread"), "cannot go on: can't start new thread; raise the limit on processes"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), "['/tmp']; set TMPDIR to"),
    ],
)
def test_a_limit_of_the_process_is_one_sentence(
    error: Exception, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def stumble() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        dispatch.run({"stumble": stumble}, ["stumble"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_few_open_files_are_one_sentence_and_no_advice_to_delete_a_set(tmp_path: Path) -> None:
    """With the limit itself: whatever file it is that cannot be opened."""
    data = tiny.build_scenes(tmp_path / "data").directory
    met = 0
    for limit in (6, 10, 16, 24):
        word = processes.Command(["data", "check", str(data)], tmp_path / f"{limit}.txt", None, limit_open_files, limit)
        code = word.wait()
        assert "Traceback" not in word.said
        assert "build the set again" not in word.said
        assert code in (0, 2)
        met += code == 2
    assert met


def limit_open_files(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def test_a_name_that_the_terminal_cannot_show_is_an_escape() -> None:
    """In a terminal of another encoding, and where a file's name is not text at all."""
    for encoding, shown in (("ascii:strict", b"\\xfc \\udcff\n"), ("utf-8:strict", "ü \\udcff\n".encode())):
        program = 'from slotnorm.cli import dispatch; dispatch.run({"show": lambda: print("\\xfc \\udcff")}, ["show"])'
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
        assert (ended.returncode, ended.stdout) == (0, shown)


def test_a_torch_that_is_too_old_is_one_sentence_and_another_failed_import_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stumble() -> None:
        raise ImportError("an error of ours")

    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    with pytest.raises(SystemExit) as ended:
        dispatch.run({"work": lambda: runpy.run_path(torch_internals.__file__)}, ["work"])
    assert ended.value.code == 2
    sentence = "slotnorm: needs torch 2.13, this is 2.5.1+cu124: pip install 'torch>=2.13,<2.14'\n"
    assert capsys.readouterr().err == sentence
    with pytest.raises(ImportError, match="an error of ours"):
        dispatch.run({"stumble": stumble}, ["stumble"])


# Prints through rich, as `theory` does, which takes seconds.
RICH = (
    "-c 'from slotnorm.cli import dispatch; from slotnorm.runtime.screen import Screen; "
    'dispatch.run({"show": lambda: Screen().print("a row")}, ["show"])\''
)


@pytest.mark.parametrize(
    "words", ["-m slotnorm experiments", "-m slotnorm train toy --help", "-m slotnorm --version", RICH]
)
@pytest.mark.parametrize(
    ("stdout", "code", "sentence"),
    [
        ("| true", 0, ""),
        (">&-", 0, ""),
        ("> /dev/full", 2, "slotnorm: cannot write: No space left on device; free some space, or choose another place"),
    ],
)
def test_an_output_that_nobody_takes_is_not_a_traceback(words: str, stdout: str, code: int, sentence: str) -> None:
    line = f"set -o pipefail; {sys.executable} {words} {stdout}"
    if stdout == "| true":  # whose end the command waits for, so that the pipe is surely closed
        line = f"set -o pipefail; (sleep 0.2; {sys.executable} {words}) {stdout}"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (code, sentence)


def test_a_refusal_that_cannot_be_written_down_has_its_exit_code() -> None:
    line = f"{sys.executable} -m slotnorm nosuch 2> /dev/full"
    assert subprocess.run(["bash", "-c", line], env=os.environ, check=False).returncode == 2


def test_work_goes_on_when_the_reader_of_its_notes_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    done = []

    def work() -> None:
        logging.getLogger("slotnorm.training").info("step 1")
        logging.getLogger("slotnorm.training").info("step 2")
        done.append("step 2")

    monkeypatch.setattr(sys, "stderr", Left())
    dispatch.run({"work": work}, ["work"])
    assert done == ["step 2"]


def test_help_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for verb in ([], ["eval"], ["train", "toy"]):
        explained = [line for line in shown(capsys, *verb, "--help").splitlines() if line.startswith("      ")]
        assert explained
        assert max(map(len, explained)) <= 40, verb


def test_what_the_disk_refuses_is_a_sentence_and_an_error_of_ours_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    def save() -> None:
        raise PermissionError(13, "Permission denied", "/root/rows")

    def stumble() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/gone")

    with pytest.raises(SystemExit) as ended:
        dispatch.run({"save": save}, ["save"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "slotnorm: cannot use /root/rows: Permission denied; choose another place\n"
    with pytest.raises(FileNotFoundError):
        dispatch.run({"stumble": stumble}, ["stumble"])


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with contextlib.suppress(SystemExit):
        verbs.main(list(words))
    printed, sentence = capsys.readouterr()
    assert sentence == ""
    return printed


def groups() -> list[list[str]]:
    inner = [[name, verb] for name, group in verbs.VERBS.items() if isinstance(group, dict) for verb in group]
    return [[], *([name] for name in verbs.VERBS), *inner, ["train", "toy"], ["sweep", "toy"], ["train", "movi-6-7"]]


@pytest.mark.parametrize("verb", groups(), ids=" ".join)
def test_help_reads_well(verb: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, *verb, "--help")
    assert text.startswith("usage: slotnorm")
    assert not re.search(r"\{None\}|NoneType|<class|[╭│╰]|typing\.", text)
    explained = re.split(r"\n  (?=\S)", re.sub(r"\n {3,}", " ", text))
    for entry in explained:
        assert entry.count("(default") <= 1, entry
        assert not entry.startswith("--") or " " in entry, f"{entry} is not explained"
    assert shown(capsys, "help", *verb) == text


def test_every_option_of_every_verb_is_explained() -> None:
    for name, verb in [*verbs.VERBS.items(), *verbs.VERBS["data"].items()]:
        if not isinstance(verb, dict) and not getattr(verb, "reads_arguments", False):
            # a launcher is chosen by --on, and its fields are explained as its own options
            unexplained = [option.key for option in of_function(verb) if not option.help and option.key != "launcher"]
            assert unexplained == [], name
    for study in studies().values():
        for option in of_dataclass(Training(study.experiment)):
            assert option.help, option.key


def test_the_top_help_names_version_help_and_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    for word in ("--version", "help VERB", "--plugin FILE", *verbs.VERBS):
        assert f"\n  {word}" in text
    assert shown(capsys, "--version") == f"slotnorm {slotnorm.__version__}\n"


def test_help_of_a_verb_names_the_experiments_and_short_options(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("train", "sweep"):
        text = shown(capsys, verb, "--help")
        assert all(name in text for name in studies())
        for option in ("--experiment PATH", "--steps, --recipe.steps INT", "--lr, --recipe.learning-rate FLOAT",
                       "--batch-size, --recipe.batch-size INT", "--slots INT"):  # fmt: skip
            assert option in text
    assert "--norms TEXT ..." in text
    assert "--[no-]plan" in text


def test_help_is_quick_and_needs_no_torch() -> None:
    code = (
        "import sys\nfrom slotnorm.cli.verbs import main\n"
        "for words in (['train', 'toy', '--help'], ['help', 'sweep'], ['--version']):\n"
        "    try:\n        main(words)\n    except SystemExit as ended:\n        assert not ended.code\n"
        "assert not {'torch', 'numpy', 'scipy', 'matplotlib', 'rich'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=os.environ)


def test_short_names_are_those_of_the_recipe() -> None:
    parsed = parse_training(["toy", "--steps", "50", "--lr", "1e-3", "--batch-size", "8"], "slotnorm train")
    assert parsed is not None
    recipe = parsed.experiment.recipe
    assert (recipe.steps, recipe.learning_rate, recipe.batch_size) == (50, 1e-3, 8)
    assert parsed.experiment.slots == 5
    swept = parse_sweep(
        ["toy", "--steps", "50", "--seeds", "1,2", "--norms", "layer_norm,batch_norm"], "slotnorm sweep"
    )
    assert swept is not None
    assert {training.experiment.recipe.steps for training in swept.trainings} == {50}
    assert len(swept.trainings) == 4


def test_the_name_may_come_behind_options_and_underscores_are_hyphens() -> None:
    first = parse_training(["toy", "--norm", "layer_norm", "--recipe.batch-size", "8"], "slotnorm train")
    assert parse_training(["--norm", "layer_norm", "--recipe.batch_size=8", "toy"], "slotnorm train") == first
    swept = parse_sweep(["--norms", "layer_norm", "--seeds", "1:3", "toy"], "slotnorm sweep")
    assert swept is not None
    assert [training.experiment.seed for training in swept.trainings] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("3:6", (3, 4, 5, 6)), ("5,10,15", (5, 10, 15)), ("7", (7,)), ("3:5,9,4", (3, 4, 5, 9)), ("15,5", (5, 15))],
)
def test_numbers_are_ranges_and_lists(text: str, numbers: tuple[int, ...]) -> None:
    assert read_numbers(text, "--slots") == numbers


@pytest.mark.parametrize("text", ["", "3:", ":3", "a", "1:2:3", "-3:4", "3, 4", "1.5", "3;4"])
def test_what_is_not_numbers_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--slots is .*, which is not numbers"):
        read_numbers(text, "--slots")
    with pytest.raises(UserError, match="where a range is meant|which is not a range"):
        read_range(text, "--objects")


def show(
    runs: Annotated[tuple[Path, ...], POSITIONAL],
    slots: Annotated[tuple[int, ...] | None, Argument(read=read_numbers, more=r"\d[\d:,]*")] = None,
    seeds: tuple[int, ...] = (1,),
    margin: float | None = None,
    style: Literal["clevr", "flat"] = "clevr",
    quiet: bool = False,
    rows: bool = True,
) -> None:
    """Show.

    Args:
        runs: what is
            shown
        slots: how many
    """


def test_options_are_made_from_a_signature() -> None:
    options = of_function(show)
    assert [option.name for option in options[:2]] == ["RUNS", "--slots"]
    assert [option.help for option in options[:2]] == ["what is shown", "how many"]
    words = [
        "a",
        "--slots",
        "5",
        "10,12",
        "b",
        "--margin",
        "-0.5",
        "--seeds",
        "1:3",
        "7",
        "--quiet",
        "--no-rows",
        "--style=flat",
        "--",
        "--c",
    ]
    assert parse(options, words, "show", "Show.") == {
        "runs": (Path("a"), Path("b"), Path("--c")), "slots": (5, 10, 12), "margin": -0.5, "seeds": (1, 2, 3, 7),
        "quiet": True, "rows": False, "style": "flat",
    }  # fmt: skip
    assert parse(options, ["--margin", "None", "x"], "show", "")["margin"] is None
    assert parse(options, ["x", "--slots", "3", "--slots", "4"], "show", "")["slots"] == (4,)


def test_a_name_behind_a_list_is_the_name() -> None:
    asked = parse(of_function(verbs.reproduce), ["--seeds", "1", "2", "toy"], "slotnorm reproduce", "")
    assert asked == {"seeds": (1, 2), "name": "toy"}


def test_options_of_a_dataclass_rebuild_it() -> None:
    default = Training(experiment("toy"))
    options = of_dataclass(default)
    assert {option.key: option.default for option in options}["recipe.model.decoder_strides"] == (2, 2)
    changed = rebuilt(default, {"recipe.steps": 3, "scenes.size": 8, "into": Path("x"), "norm": "layer_norm"})
    factors = changed.experiment
    assert factors.scenes is not None
    assert (factors.recipe.steps, factors.scenes.size, changed.into, factors.norm) == (3, 8, Path("x"), "layer_norm")
    assert rebuilt(default, {}) == default


def test_an_experiment_file_makes_the_experiment_again(tmp_path: Path) -> None:
    wanted = dataclasses.replace(tiny.experiment("batch_norm", seed=7), name="mine", max_objects=3)
    write_experiment(tmp_path / "mine.json", wanted)
    parsed = parse_training(["--experiment", str(tmp_path / "mine.json")], "slotnorm train")
    assert parsed == Training(wanted)
    changed = parse_training(
        [f"--experiment={tmp_path / 'mine.json'}", "--seed", "8", "--steps", "9"], "slotnorm train"
    )
    assert changed is not None
    recipe = dataclasses.replace(wanted.recipe, steps=9)
    assert changed.experiment == dataclasses.replace(wanted, seed=8, recipe=recipe)
    swept = parse_sweep(["--experiment", str(tmp_path / "mine.json"), "--norms", "layer_norm"], "slotnorm sweep")
    assert swept is not None
    assert [training.experiment for training in swept.trainings] == [dataclasses.replace(wanted, norm="layer_norm")]


def test_a_runs_own_file_trains_it_again_and_continues_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tiny.build_scenes(tmp_path / "set").directory
    run = train(tiny.experiment(steps=2), tmp_path / "runs", data=data)
    file = str(run.path / "experiment.json")
    verbs.main(["train", "--experiment", file, "--into", str(tmp_path / "again"), "--data", str(data)])
    again = Run.open(tmp_path / "again" / run.name)
    assert again.experiment == run.experiment
    assert again.weights().tensors.keys() == run.weights().tensors.keys()
    assert all((tensor == again.weights().tensors[name]).all() for name, tensor in run.weights().tensors.items())
    verbs.main(["train", "--experiment", file, "--into", str(run.path.parent), "--data", str(data), "--steps", "3"])
    assert Run.open(run.path).step == 3
    assert f"{run.path}: step 3 of 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda document: "[]", "it is not a JSON object with named fields"),
        (lambda document: "{", "is not valid JSON"),
        (lambda document: "[" * 100_000, "is not valid JSON"),
        (lambda document: json.dumps(document | {"nrm": "x"}), "experiment has no field 'nrm'; did you mean 'norm'?"),
        (lambda document: json.dumps(document | {"slots": "5"}), "experiment.slots is '5', but it must be a int"),
        (lambda document: json.dumps({"name": "toy"}), "experiment lacks the field"),
        (lambda document: json.dumps(document | {"slots": 0}), "slots is 0, but must be a positive number"),
        (lambda document: json.dumps({"format": 1, "experiment": document}), "experiment has no field 'format'"),
        (lambda document: json.dumps({"sha256_of_this": "0", "experiment": document}), "its seal does not match"),
    ],
)
def test_a_file_that_is_not_an_experiment_is_one_sentence(
    change: "type", sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.json"
    file.write_text(change(to_document(tiny.experiment())))
    refusal = refused(capsys, "train", "--experiment", str(file))
    assert str(file) in refusal
    assert sentence in refusal


def test_a_file_that_is_not_there_and_a_name_beside_it_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no file none.json" in refused(capsys, "train", "--experiment", "none.json")
    assert "--experiment needs a file" in refused(capsys, "train", "--experiment")
    assert "--experiment needs a file" in refused(capsys, "train", "--experiment", "--steps", "3")
    (tmp_path / "experiment.json").write_text("{}")
    inside = tmp_path / "experiment.json"
    assert f"is a folder, and an experiment is a file; give {inside}" in refused(
        capsys, "train", "--experiment", str(tmp_path)
    )
    both = refused(capsys, "train", "toy", "--experiment", "x.json")
    assert "give an experiment by its name, toy, or by --experiment x.json, not both" in both


def test_a_file_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    data = tiny.build_scenes(tmp_path / "set").directory
    run = train(tiny.experiment(steps=1), tmp_path / "runs", data=data)
    from slotnorm.storage.seals import read_sealed, write_sealed

    content = read_sealed(run.path / "experiment.json")
    write_sealed(tmp_path / "newer.json", content | {"format": 99})
    with pytest.raises(UserError, match="newer.json has format 99, this slotnorm reads 1: install a newer one"):
        read_experiment(tmp_path / "newer.json")


def test_a_plan_is_printed_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tiny.build_scenes(tmp_path / "set").directory
    train(tiny.experiment("layer_norm"), tmp_path / "runs", data=data)
    train(tiny.experiment("batch_norm", steps=4), tmp_path / "runs", data=data)
    write_experiment(tmp_path / "tiny.json", tiny.experiment())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    norms = ["--norms", "layer_norm", "batch_norm", "weighted_sum", "--seeds", "1"]
    verbs.main(
        ["sweep", "--experiment", str(tmp_path / "tiny.json"), *norms, "--into", str(tmp_path / "runs"), "--plan"]
    )
    runs = tmp_path / "runs"
    assert capsys.readouterr().out.splitlines() == [
        f"{runs / 'toy-layer_norm-1'}: finished, 12 steps",
        f"{runs / 'toy-batch_norm-1'}: to train, from step 4 to 12",
        f"{runs / 'toy-weighted_sum-1'}: to train, 12 steps",
        "2 of 3 runs to train, 20 steps",
    ]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_normalization_that_does_not_exist_is_refused_when_it_is_asked_for() -> None:
    with pytest.raises(UserError, match="there is no normalization 'wsum'; did you mean 'weighted_sum'?"):
        slotnorm.experiment("toy", norm="wsum")
    with pytest.raises(UserError, match=r"there is no normalization \['batch_norm'\]"):
        slotnorm.experiment("toy", norm=["batch_norm"])
    with pytest.raises(UserError, match="there is no normalization 5; known are: weighted_mean"):
        slotnorm.experiment("toy", norm=5)
    assert slotnorm.experiment("toy", norm="batch_norm").norm == "batch_norm"


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ({"slots": "5"}, "slots is '5', but must be a whole number"),
        ({"slots": range(3, 5)}, r"slots is range\(3, 5\), but must be a whole number"),
        ({"slots": 2.5}, "slots is 2.5, but must be a whole number"),
        ({"seed": "1"}, "seed is '1', but must be a whole number"),
        ({"max_objects": True}, "max-objects is True, but must be a whole number"),
        ({"steps": 5}, r"steps is a field of the recipe.*dataclasses.replace\(experiment.recipe, steps=...\)"),
    ],
)
def test_a_factor_of_another_kind_is_refused_in_python(factors: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        slotnorm.experiment("toy", **factors)
    with pytest.raises(UserError, match="there is no experiment None; known are: clevr-6-7"):
        slotnorm.experiment(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="5 cannot name an experiment"):
        dataclasses.replace(slotnorm.experiment("toy"), name=5)  # type: ignore[arg-type]


def test_a_pair_of_numbers_may_be_a_range() -> None:
    for written in (["2", "3"], ["2:3"]):
        parsed = parse_training(["toy", "--scenes.objects", *written], "slotnorm train")
        assert parsed is not None
        assert parsed.experiment.scenes is not None
        assert parsed.experiment.scenes.objects == (2, 3)


def test_a_run_made_from_a_path_points_to_open(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a run in a folder is opened by Run.open\('runs/x'\), not by Run\('runs/x'\)"):
        slotnorm.Run("runs/x")  # type: ignore[call-arg, arg-type]
