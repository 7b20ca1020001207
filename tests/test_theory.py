"""Propositions 1 and 2, the E- and M-step beside Slot Attention, and the command that shows them."""

import copy
import io
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from slotnorm.cli.verbs import main
from slotnorm.errors import UserError
from slotnorm.normalization import WeightedSum, normalizations
from slotnorm.slot_attention import SlotAttention
from slotnorm.theory import (
    affine_hull,
    counterexample,
    expectation_step,
    implied_mixture_weights,
    maximization_step,
    mixture_layer,
    recover_direction,
    recover_mass,
    recover_weighted_mean,
    update_bound,
    with_normalization,
)
from slotnorm.theory.checks import Check, check_theory, compare_equal_slots, refusals
from slotnorm.theory.layers import layer_from_state, random_layer, train_layer
from slotnorm.theory.mass import unnormalize
from slotnorm.theory.table import show
from slotnorm.theory.vmf import expectation, maximization

GOLDEN = Path(__file__).parent / "golden"


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def trained():
    layer, losses = train_layer(seed=3, steps=40)
    assert losses[-1] < losses[0]
    return layer.double()


def golden_layer(normalization="weighted_sum"):
    """The weights of the parity fixtures."""
    fixture = np.load(GOLDEN / "slot_attention_sum.npz")
    state = {name.removeprefix("w/"): torch.from_numpy(fixture[name]) for name in fixture if name.startswith("w/")}
    return with_normalization(layer_from_state(state).double(), normalization)


def some_layer(kind, trained, normalization="weighted_sum"):
    layers = {
        "random": lambda: random_layer(16, 1),
        "narrow tokens": lambda: random_layer(16, 2, dim_in=9),
        "tokens of width 1": lambda: random_layer(6, 3, dim_in=1),
        "wide": lambda: random_layer(64, 4),
        "trained": lambda: trained,
    }
    return with_normalization(layers[kind](), normalization)


KINDS = ["random", "narrow tokens", "tokens of width 1", "wide", "trained"]


# Proposition 2 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_slots", [1, 5, 60])
def test_the_mass_is_recovered_from_weighted_sum_codes(kind, num_slots, trained):
    layer = some_layer(kind, trained)
    tokens = draw(3, 40, layer.dim_in, seed=5) * 2 + 1
    for step in layer.trace(tokens, slots=3 * draw(3, num_slots, layer.dim, seed=6), iterations=3):
        mass = recover_mass(layer, step.updates, num_tokens=40)
        assert mass.shape == (3, num_slots)
        torch.testing.assert_close(mass, step.attention.sum(dim=-1), rtol=0, atol=1e-8)
        torch.testing.assert_close(mass.sum(dim=1), torch.full((3,), 40.0, dtype=torch.float64), rtol=0, atol=1e-8)


def test_the_mass_is_uneven_where_it_is_recovered(trained):
    """The test above would say little if every slot had the same mass."""
    for kind in ("random", "trained"):
        layer = some_layer(kind, trained)
        (step,) = layer.trace(draw(3, 40, 16, seed=5) * 2 + 1, slots=3 * draw(3, 5, 16, seed=6), iterations=1)
        assert (step.attention.sum(dim=-1).std(dim=1) > 0.5).all()


def test_the_mass_of_the_golden_layer_is_recovered():
    layer = golden_layer()
    tokens = torch.from_numpy(np.load(GOLDEN / "slot_attention_sum.npz")["inputs"])
    for step in layer.trace(tokens, slots=draw(len(tokens), 7, layer.dim), iterations=3):
        mass = recover_mass(layer, step.updates, tokens.shape[1])
        torch.testing.assert_close(mass, step.attention.sum(dim=-1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [None, 1.0, 7.5])
def test_the_scale_of_the_weighted_sum_is_honoured(scale):
    layer = with_normalization(random_layer(16, 1), WeightedSum(16, scale=scale))
    (step,) = layer.trace(draw(2, 30, 16), slots=draw(2, 4, 16, seed=1), iterations=1)
    torch.testing.assert_close(recover_mass(layer, step.updates, num_tokens=30), step.attention.sum(dim=-1))


@pytest.mark.parametrize("name", ["unnormalized", "batch_norm"])
def test_the_mass_is_recovered_from_the_other_schemes_that_keep_it(name):
    layer = with_normalization(random_layer(16, 1), name)
    tokens, slots = draw(2, 30, 16), draw(2, 4, 16, seed=1)
    if name == "batch_norm":
        with torch.no_grad():
            layer.normalization.weight.fill_(-0.7)
            layer.normalization.bias.fill_(0.3)
        layer.train()
        (step,) = layer.trace(tokens, slots=slots, iterations=1)
        with pytest.raises(
            UserError, match=r"statistics in training are those of the batch; call attend.eval\(\) first"
        ):
            recover_mass(layer, step.updates, num_tokens=30)
        layer.eval()
    for step in layer.trace(tokens, slots=slots, iterations=2):
        torch.testing.assert_close(recover_mass(layer, step.updates, num_tokens=30), step.attention.sum(dim=-1))
        torch.testing.assert_close(unnormalize(layer, step.updates, num_tokens=30), step.aggregate.sums)


def test_of_a_users_scheme_nothing_false_is_said(monkeypatch):
    monkeypatch.setattr("slotnorm.normalization._registry", dict(normalizations()))

    class Mine(WeightedSum):
        """Codes of my own."""

        name, label, where, keeps_mass = "mine", "Mine", "here", True

    layer = with_normalization(random_layer(16, 1), Mine(16))
    with pytest.raises(UserError, match="mine cannot be undone: how to undo it is not known here; use weighted_sum"):
        recover_mass(layer, draw(1, 2, 16), num_tokens=3)


@pytest.mark.parametrize("name", normalizations())
def test_only_codes_that_keep_the_mass_are_accepted(name):
    layer = with_normalization(random_layer(16, 1), name)
    if normalizations()[name].keeps_mass:
        assert recover_mass(layer, draw(1, 2, 16), num_tokens=3).shape == (1, 2)
    else:
        with pytest.raises(UserError, match=f"{name} cannot be undone: its codes do not tell the mass"):
            recover_mass(layer, draw(1, 2, 16), num_tokens=3)


def test_with_a_token_mask_each_image_has_its_own_number_of_tokens():
    layer = random_layer(16, 1)
    present = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)) < 0.6
    (step,) = layer.trace(draw(3, 20, 16), slots=draw(3, 4, 16, seed=1), iterations=1, token_mask=present)
    for counts in (present.sum(1), step.aggregate.num_tokens):
        mass = recover_mass(layer, step.updates, num_tokens=counts)
        torch.testing.assert_close(mass, step.aggregate.mass[..., 0])
        torch.testing.assert_close(mass.sum(1), present.sum(1).double())


def test_single_precision_recovers_the_mass_to_its_precision():
    layer = random_layer(16, 1).float()
    (step,) = layer.trace(draw(2, 30, 16).float(), slots=draw(2, 4, 16, seed=1).float(), iterations=1)
    mass = recover_mass(layer, step.updates, num_tokens=30)
    assert mass.dtype == torch.float32
    torch.testing.assert_close(mass, step.attention.sum(dim=-1), rtol=0, atol=1e-2)
    assert mass.requires_grad


@pytest.mark.parametrize("kind", ["random", "narrow tokens", "trained"])
def test_weighted_mean_codes_and_directions_follow_from_weighted_sum_codes(kind, trained):
    layer, baseline = some_layer(kind, trained), some_layer(kind, trained, "weighted_mean")
    tokens, slots = draw(2, 25, layer.dim_in, seed=1), 3 * draw(2, 6, layer.dim, seed=2)
    (ours,), (theirs,) = (each.trace(tokens, slots=slots, iterations=1) for each in (layer, baseline))
    means = recover_weighted_mean(layer, ours.updates, num_tokens=25)
    torch.testing.assert_close(means, theirs.updates, rtol=1e-8, atol=1e-8)
    directions = recover_direction(layer, ours.updates, num_tokens=25)
    torch.testing.assert_close(directions, torch.nn.functional.normalize(theirs.updates, dim=-1), rtol=0, atol=1e-6)
    assert (ours.updates - theirs.updates).abs().max() > 1e-3


@pytest.mark.parametrize("dim_in", [16, 9])
def test_the_offset_is_the_origins_projection_on_the_hull(dim_in):
    layer = random_layer(16, 1, dim_in=dim_in)
    hull = affine_hull(layer.norm_input, layer.value)
    values = layer.value(layer.norm_input(draw(1, 500, dim_in)))[0].detach()
    # least squares on points of the hull: the shortest combination whose coefficients add to one
    origin = (
        values[0]
        - (values[1:] - values[0]).mT
        @ torch.linalg.lstsq((values[1:] - values[0]).mT, values[0], driver="gelsd").solution
    )
    torch.testing.assert_close(hull.offset, origin, rtol=0, atol=1e-9)
    assert hull.basis.shape == (16, dim_in - 1)
    torch.testing.assert_close(hull.project(values), values - hull.offset, rtol=0, atol=1e-10)
    assert hull.spread == pytest.approx(values.square().sum(dim=1).mean().sqrt().item(), rel=0.1)


# where the mass cannot be recovered ---------------------------------------------------------------------------------


def test_a_fresh_layer_says_that_its_bias_is_zero():
    layer = SlotAttention(16)
    with pytest.raises(UserError, match=r"contains the origin: norm_input.bias is 0, as it is before training"):
        recover_mass(layer, torch.zeros(1, 2, 16), num_tokens=3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_bias_that_cancels_is_told_from_a_zero_one(dtype):
    layer = random_layer(16, 1)
    with torch.no_grad():
        ratio = layer.norm_input.bias / layer.norm_input.weight
        layer.norm_input.bias.copy_((ratio - ratio.mean()) * layer.norm_input.weight)
    with pytest.raises(UserError, match=r"sum\(norm_input.bias / norm_input.weight\) is 0"):
        recover_mass(layer.to(dtype), torch.zeros(1, 2, 16, dtype=dtype), num_tokens=3)


def test_tokens_wider_than_slots_leave_nothing_to_recover():
    layer = random_layer(16, 1, dim_in=17)
    with pytest.raises(UserError, match="tokens of width 17 fill all 16 dimensions of the values; use dim_in <= dim"):
        recover_mass(layer, draw(1, 2, 16), num_tokens=3)


def test_codes_of_another_shape_are_refused():
    with pytest.raises(UserError, match=r"updates have shape \(2, 8\), but \(B, K, 16\) is needed"):
        recover_mass(random_layer(16, 1), draw(2, 8), num_tokens=3)


# Proposition 1 and the bound ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "narrow tokens", "trained"])
@pytest.mark.parametrize("name", normalizations())
def test_equal_codes_with_unequal_mass_are_what_forgetful_schemes_have(kind, name, trained):
    layer = some_layer(kind, trained, name)
    example = counterexample(layer, draw(3, 20, layer.dim_in, seed=1))
    torch.testing.assert_close(example.mass[0], torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(example.mass[1], torch.full((3,), 0.5, dtype=torch.float64))
    limit = 1e-14 if name == "weighted_mean" else 1e-5
    assert (example.difference < limit) == (not normalizations()[name].keeps_mass)
    if name == "weighted_sum":
        torch.testing.assert_close(example.codes[0], 2 * example.codes[1])


def test_the_counterexample_leaves_the_layer_alone():
    layer = with_normalization(random_layer(16, 1), "batch_norm").train()
    before = copy.deepcopy(layer.state_dict())
    counterexample(layer, draw(2, 10, 16))
    assert layer.training
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("num_tokens", [1, 10, 2000])
def test_weighted_sum_codes_are_bounded_by_the_largest_value(num_tokens):
    layer = random_layer(16, 1)
    tokens = draw(2, num_tokens, 16)
    bound = update_bound(layer, tokens)
    values = layer.value(layer.norm_input(tokens))
    assert torch.equal(bound, values.abs().max(dim=1).values)
    for count in (1, 3, 12):
        for step in layer.trace(tokens, slots=5 * draw(2, count, 16, seed=count), iterations=2):
            assert (step.updates.abs() <= bound[:, None] * (1 + 1e-12)).all()
    unnormalized = with_normalization(layer, "unnormalized").trace(tokens, slots=draw(2, 1, 16), iterations=1)[0]
    assert (unnormalized.updates.abs() > bound[:, None] * (1 + 1e-12)).any() == (num_tokens > 1)


# E-step and M-step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "tokens wider than slots"])
def test_the_attention_is_an_e_step_with_implied_weights(kind, trained):
    layer = random_layer(16, 1, dim_in=20) if kind == "tokens wider than slots" else some_layer(kind, trained)
    tokens = draw(2, 30, layer.dim_in, seed=1) + 1
    for iteration in layer.trace(tokens, slots=2 * draw(2, 5, layer.dim, seed=2), iterations=2):
        step = expectation_step(layer, tokens, iteration.slots)
        torch.testing.assert_close(step.attention, iteration.attention, rtol=0, atol=1e-11)
        torch.testing.assert_close(step.weights, implied_mixture_weights(layer, iteration.slots))
        torch.testing.assert_close(step.weights.sum(dim=1), torch.ones(2, dtype=torch.float64))
        unit = 0.0 if kind == "tokens of width 1" else 1.0  # one point has no directions
        torch.testing.assert_close(step.directions.norm(dim=-1), torch.full((2, 5), unit, dtype=torch.float64))


def test_the_implied_weights_follow_the_papers_formula():
    """exp(aᵀ p_a(q_k) / √D), with a found as the common part of the keys: kᵀa is the same for all of them."""
    layer = random_layer(16, 1)
    slots = 2 * draw(1, 4, 16, seed=2)
    offset = affine_hull(layer.norm_input, layer.key).offset
    keys = layer.key(layer.norm_input(draw(1, 50, 16)))
    torch.testing.assert_close(keys @ offset, offset.square().sum().expand(1, 50), rtol=1e-8, atol=0)
    queries = layer.query(layer.norm_slots(slots))
    along = (queries @ offset / offset.square().sum())[..., None] * offset  # p_a
    scores = (along @ offset / math.sqrt(16)).exp()
    weights = implied_mixture_weights(layer, slots)
    torch.testing.assert_close(weights, scores / scores.sum(dim=1, keepdim=True), rtol=1e-9, atol=0)
    assert weights.std() > 1e-4


def test_without_an_offset_the_implied_weights_are_equal():
    weights = implied_mixture_weights(SlotAttention(16).double(), draw(2, 5, 16))
    torch.testing.assert_close(weights, torch.full((2, 5), 0.2, dtype=torch.float64))


def test_weighted_sum_codes_hold_both_results_of_the_m_step(trained):
    tokens = draw(2, 30, 16, seed=1)
    for iteration in trained.trace(tokens, slots=draw(2, 5, 16, seed=2), iterations=2):
        step = maximization_step(trained, tokens, iteration.attention)
        torch.testing.assert_close(recover_mass(trained, iteration.updates, 30) / 30, step.weights, rtol=0, atol=1e-9)
        torch.testing.assert_close(
            recover_direction(trained, iteration.updates, 30), step.directions, rtol=0, atol=1e-9
        )


@pytest.mark.parametrize("tau", [1.0, 0.2])
def test_with_identity_maps_an_iteration_is_one_of_expectation_maximization(tau):
    layer = mixture_layer(12, tau)
    tokens, slots = draw(1, 40, 12, seed=1), draw(1, 3, 12, seed=2)
    (step,) = layer.trace(tokens, slots=slots, iterations=1)

    def on_sphere(vectors):
        centred = vectors - vectors.mean(dim=-1, keepdim=True)
        return (centred / centred.norm(dim=-1, keepdim=True))[0].numpy()

    points = on_sphere(tokens)
    attention, _ = expectation(points, np.full(3, 1 / 3), on_sphere(slots), np.full(3, 1 / tau))
    weights, directions, _ = maximization(points, attention)
    np.testing.assert_allclose(step.attention[0].detach(), attention.T, rtol=1e-12)
    np.testing.assert_allclose(step.attention[0].mean(dim=-1).detach(), weights, rtol=1e-12)
    np.testing.assert_allclose(recover_direction(layer, step.updates, 40)[0].detach(), directions, rtol=1e-10)
    with pytest.raises(UserError, match="tau is 0, but must be positive and finite"):
        mixture_layer(12, tau=0)


# the command --------------------------------------------------------------------------------------------------------


def test_every_check_holds_and_can_fail(trained):
    checks = check_theory(trained, seed=1)
    assert [check.statement for check in checks if not check.holds] == []
    assert all(math.isfinite(check.random) for check in checks)
    assert sum(check.trained is not None for check in checks) == 11
    for value in (1e-3, math.nan):
        assert not Check("here", "something", value, None, 1e-9).holds
        assert not Check("here", "something", 0.0, value, 1e-9).holds


def test_wrong_parameters_are_noticed(trained, monkeypatch):
    """A recovery that used another layer's offset would fail the checks."""
    import slotnorm.theory.mass as mass

    right = mass.value_offset
    monkeypatch.setattr(mass, "value_offset", lambda *arguments: right(*arguments) * 1.001)
    failed = {check.statement for check in check_theory(trained) if not check.holds}
    assert any("Weighted Sum: the code tells the mass" in statement for statement in failed)


def test_equal_slots_are_noticed_by_the_schemes_that_keep_the_mass(trained):
    equal = compare_equal_slots(trained, slots=(1, 2, 4))
    assert equal.mass == pytest.approx([1, 0.5, 0.25])
    assert equal.recovered == pytest.approx([1, 0.5, 0.25])
    for scheme in normalizations().values():
        assert (equal.lengths[scheme.label][2] == pytest.approx(1, abs=1e-4)) == (not scheme.keeps_mass)


def test_the_exceptions_are_refused_with_their_reasons():
    before, wide = refusals().values()
    assert "norm_input.bias is 0" in before
    assert "fill all 16 dimensions" in wide


def test_the_command_prints_plain_lines_where_there_is_no_terminal(capsys):
    main(["theory", "--seed", "2"])
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "\x1b" not in shown.out
    lines = shown.out.splitlines()
    assert sum(line.endswith("holds") for line in lines) == 14
    assert "FAILS" not in shown.out
    assert any(line.startswith("mass read off the Weighted Sum  1.000  0.500  0.250  0.125") for line in lines)


def test_the_layer_is_found_inside_a_model(trained):
    state = with_normalization(trained, "batch_norm").state_dict()
    inside = {f"slot_attention.{name}": tensor for name, tensor in state.items()} | {"key.weight": torch.ones(3)}
    for layer in (layer_from_state(state), layer_from_state(inside)):
        for name, parameter in trained.named_parameters():
            assert torch.equal(layer.state_dict()[name], parameter)


def test_the_command_takes_saved_weights(trained, tmp_path, capsys):
    path = tmp_path / "weights of mine.safetensors"
    save_file(trained.state_dict(), path)
    main(["theory", "--run", str(path)])
    shown = capsys.readouterr().out
    assert f"trained: {path}" in shown
    assert "undefined" not in shown
    (line,) = (line for line in shown.splitlines() if "the code tells the mass" in line)
    assert 0 < float(line.split()[-3]) < 1e-9


def test_weights_before_training_are_shown_as_undefined(tmp_path, capsys):
    path = tmp_path / "fresh.safetensors"
    save_file(SlotAttention(8).state_dict(), path)
    main(["theory", "--run", str(path)])
    shown = capsys.readouterr().out
    assert "undefined for the trained layer: the mass cannot be read off the codes" in shown
    assert "mass read off" not in shown
    assert "FAILS" not in shown


def test_a_failing_statement_is_shown_and_ends_with_an_error(trained, tmp_path, monkeypatch, capsys):
    import slotnorm.theory.checks as checks

    path = tmp_path / "layer.safetensors"
    save_file(trained.state_dict(), path)
    monkeypatch.setattr(
        checks, "check_theory", lambda *_: [Check("Prop. 2", "the moon is [b]cheese[/b]", 0.5, 0.1, 1e-9)]
    )
    with pytest.raises(SystemExit) as ended:
        main(["theory", "--run", str(path)])
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert "FAILS" in shown
    assert "the moon is [b]cheese[/b]" in shown


def test_a_reader_who_leaves_is_told_to_the_caller(trained, monkeypatch):
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Left())
    with pytest.raises(BrokenPipeError):
        show([], compare_equal_slots(trained), {}, "a layer")


def test_a_terminal_gets_a_table_with_or_without_colour(trained, monkeypatch, capsys):
    checks = [Check("Prop. 2", "a statement", 1e-12, None, 1e-9)]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    show(checks, compare_equal_slots(trained), refusals(), "a layer")
    assert "\x1b[32mholds" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    show(checks, compare_equal_slots(trained), refusals(), "a layer")
    shown = capsys.readouterr().out
    assert "\x1b[32m" not in shown
    assert "───" in shown
    assert max(map(len, re.sub(r"\x1b\[\d*m", "", shown).splitlines())) <= 80


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"weight": torch.ones(2)}, "these weights have no Slot Attention"),
        ({**SlotAttention(4).state_dict(), "gru.bias_ih": torch.ones(5)}, "do not fit one Slot Attention layer"),
    ],
)
def test_other_weights_get_one_sentence(content, sentence, tmp_path, capsys):
    path = tmp_path / "other.safetensors"
    save_file(content, path)
    with pytest.raises(SystemExit) as ended:
        main(["theory", "--run", str(path)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1


def test_the_command_takes_a_run_and_what_it_exports(tmp_path, capsys):
    import slotnorm as sn
    import tiny

    tiny.build_scenes(tmp_path / "scenes", num=16)
    experiment = tiny.experiment(norm="batch_norm", steps=8, checkpoint_every=4, validation_scenes=4)
    run = sn.train(experiment, into=tmp_path / "runs", data=tmp_path / "scenes")
    exported = run.export(tmp_path / "model.safetensors")
    tables = []
    for path in (run.path, exported):
        capsys.readouterr()
        main(["theory", "--run", str(path)])
        shown = capsys.readouterr().out.splitlines()
        assert any(line.endswith(f"trained: {path}") for line in shown)
        tables.append([line for line in shown if "trained:" not in line])
    assert tables[0] == tables[1]
    assert sum(line.endswith("holds") for line in tables[0]) == 14
    damaged = bytearray(exported.read_bytes())
    damaged[-5] ^= 4
    exported.write_bytes(damaged)
    with pytest.raises(SystemExit):
        main(["theory", "--run", str(exported)])
    assert "is damaged" in capsys.readouterr().err
