import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from slotnorm.config import Experiment, FeatureModel, GeneratedScenes, ImageModel, Recipe, SetModel, dataset_label
from slotnorm.data.generator import provenance
from slotnorm.errors import DamagedFile, UserError
from slotnorm.experiments import studies
from slotnorm.storage.seals import digest, read_sealed, write_sealed
from slotnorm.storage.serialization import differences, from_document, to_document


@pytest.mark.parametrize("name", studies())
def test_an_experiment_survives_json(name: str) -> None:
    experiment = studies()[name].experiment
    again = from_document(Experiment, json.loads(json.dumps(to_document(experiment))))
    assert again == experiment
    assert again.identity == experiment.identity
    assert type(again.recipe.model) is type(experiment.recipe.model)


WRITTEN = json.loads((Path(__file__).parent / "fixtures" / "experiments.json").read_text())


@pytest.mark.parametrize("written", WRITTEN, ids=lambda written: written["document"]["name"])
def test_documents_identities_and_scenes_of_earlier_versions_stay_what_they_were(written: dict[str, Any]) -> None:
    """Runs resume by their document and identity, and find their generated scenes by the hash of what made them."""
    read = from_document(Experiment, written["document"])
    assert to_document(read) == written["document"]
    assert read.identity == written["identity"]
    for which, expected in written.get("provenance", {}).items():
        split, objects = which.split()
        assert read.scenes is not None
        fewest, most = map(int, objects.split(":"))
        assert digest(provenance(read.scenes.spec(split, (fewest, most)))) == expected, which


def changed(path: str, value: Any) -> dict[str, Any]:
    """The tiny experiment's document with one value replaced, added (by a new name) or removed (by ...)."""
    document = to_document(tiny.experiment())
    *parents, name = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    place[name] = value
    if value is ...:
        del place[name]
    return document


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("recipe.stpes", 3, "experiment.recipe has no field 'stpes'; did you mean 'steps'?"),
        ("sedd", 3, "experiment has no field 'sedd'; did you mean 'seed'?"),
        ("recipe.steps", ..., "experiment.recipe lacks the field 'steps'"),
        ("recipe.steps", 1.5, "experiment.recipe.steps is 1.5, but it must be a int"),
        ("recipe.steps", True, "experiment.recipe.steps is True, but it must be a int"),
        ("recipe.learning_rate", "fast", "experiment.recipe.learning_rate is 'fast', but it must be a finite float"),
        ("recipe.learning_rate", float("nan"), "but it must be a finite float"),
        ("recipe.protocol", "papper", "experiment.recipe.protocol is 'papper'; did you mean 'paper'?"),
        ("recipe.model.kind", "image_autoencodr", "experiment.recipe.model.kind is 'image_autoencodr'; did you mean"),
        ("recipe.model", 7, "experiment.recipe.model.kind is None"),
        ("recipe.model.strides", 2, "experiment.recipe.model.strides is 2, but it must be a list"),
        ("scenes.objects", [1, 2, 3], "experiment.scenes.objects has 3 entries, but it must have 2"),
        ("scenes.objects", [1, "2"], r"experiment.scenes.objects\[1\] is '2'"),
        ("recipe", [], r"experiment.recipe is \[\], but it must be an object"),
    ],
)
def test_a_document_with_a_wrong_field_is_refused_by_name(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_document(Experiment, changed(path, value))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "recipe.steps is 0, but must be a positive number"),
        ({"batch_size": -4}, "recipe.batch-size is -4"),
        ({"learning_rate": float("inf")}, "recipe.learning-rate is inf"),
        ({"clip": 0.0}, "recipe.clip is 0.0"),
        ({"half_life": 10, "cosine_to": 0.1}, "exactly one of them is given"),
        ({"half_life": None, "cosine_to": None}, "exactly one of them is given"),
        ({"warmup_steps": -1}, "recipe.warmup-steps is -1"),
        ({"cosine_to": 1.5}, "recipe.cosine-to is 1.5, but is a share of the peak"),
        ({"warmup_from": -0.1}, "recipe.warmup-from is -0.1"),
        ({"iterations": 1001}, "recipe.iterations is 1001, but must be at most 1,000"),
        ({"evaluation_iterations": 10**9}, "recipe.evaluation-iterations is 1000000000, but must be at most 1,000"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        tiny.recipe(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "../escape"}, "cannot name an experiment"),
        ({"name": ""}, "cannot name an experiment"),
        ({"name": "a" * 101}, "name is 'aaaa.*', but must have at most 100 letters, all printable"),
        ({"dataset": "a\nb"}, "dataset is 'a.*', but must have at most 100 letters, all printable"),
        ({"slots": 0}, "slots is 0"),
        ({"max_objects": -1}, "max-objects is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"slots": 4097}, "slots is 4097, but must be at most 4,096"),
    ],
)
def test_an_experiment_that_makes_no_sense_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        dataclasses.replace(tiny.experiment(), **changes)


@pytest.mark.parametrize(
    ("model", "most"), [(ImageModel(size=2048), 16), (SetModel(size=1024), 64), (FeatureModel(tokens=1 << 16), 1024)]
)
def test_masks_of_one_picture_have_a_largest_size(model: ImageModel | SetModel | FeatureModel, most: int) -> None:
    experiment = tiny.experiment(model=model)
    assert dataclasses.replace(experiment, slots=most).slots == most
    with pytest.raises(UserError, match=f"slots is {most + 1}, but must be at most {most:,} for a model of "):
        dataclasses.replace(experiment, slots=most + 1)


def test_the_identity_changes_with_every_field_but_steps() -> None:
    experiment = tiny.experiment()
    more = dataclasses.replace(experiment, recipe=dataclasses.replace(experiment.recipe, steps=99))
    assert more.identity == experiment.identity
    others = [
        dataclasses.replace(experiment, seed=9),
        dataclasses.replace(experiment, norm="layer_norm"),
        tiny.experiment(batch_size=8),
        tiny.experiment(model=ImageModel(size=8)),
        dataclasses.replace(experiment, scenes=GeneratedScenes()),
    ]
    assert len({experiment.identity, *(other.identity for other in others)}) == 6


def test_the_defaults_of_a_recipe_are_the_papers_where_it_has_one_value() -> None:
    recipe = Recipe(model=ImageModel())
    assert (recipe.steps, recipe.batch_size, recipe.warmup_steps, recipe.half_life) == (500_000, 64, 10_000, 100_000)
    assert (recipe.iterations, recipe.protocol, recipe.precision) == (3, "paper", "float32")


def test_differences_name_the_fields() -> None:
    old, new = to_document(tiny.experiment()), to_document(tiny.experiment("layer_norm", batch_size=8))
    assert differences(old, new) == [("recipe.batch_size", 4, 8), ("norm", "weighted_sum", "layer_norm")]


def test_sets_are_labelled_with_their_filter() -> None:
    assert [dataset_label("clevr", 6), dataset_label("movi-c", 10), dataset_label("toy", None)] == [
        "clevr6",
        "movi-c10",
        "toy",
    ]


def test_a_sealed_document_notices_every_change(tmp_path: Path) -> None:
    path, content = tmp_path / "sealed.json", {"step": 3, "name": "é", "numbers": [1, 2.5], "none": None}
    write_sealed(path, content)
    assert read_sealed(path) == content
    written = path.read_bytes()
    for place in range(len(written)):
        for bit in range(8):
            damaged = bytearray(written)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(DamagedFile, match=r"sealed\.json"):
                read_sealed(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b"[" * 200_000, b'{"a": NaN}', b"\xff\xfe", b"{}"])
def test_what_is_no_sealed_document_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"file\.json"):
        read_sealed(tmp_path / "file.json")


def test_a_huge_document_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "file.json", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(DamagedFile, match="not a document of slotnorm"):
        read_sealed(tmp_path / "file.json")


def test_a_digest_does_not_depend_on_the_order_of_names() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})
