"""How slots start: the contract, over the registry; the Gaussian as it always was; learned slots and their number."""

import copy
import math

import pytest
import torch

import slotnorm as sn
from slotnorm.initialization import (
    Gaussian,
    Initialization,
    Learned,
    UnknownInitialization,
    initializations,
    make_initialization,
)
from slotnorm.slot_attention import SlotAttention

NAMES = list(initializations())
TOKENS = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0))
NOISE = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))


def layer_of(name: str, dtype: torch.dtype = torch.float32) -> SlotAttention:
    torch.manual_seed(2)
    return SlotAttention(8, hidden=16, initialization=name, num_slots=4).to(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_every_initialization_says_what_it_is(name):
    kind = initializations()[name]
    assert kind.name == name
    assert kind.label
    assert kind.where
    assert kind.__doc__
    assert sn.initializations()[name] is kind
    assert isinstance(layer_of(name).initialization, kind)


@pytest.mark.parametrize("name", NAMES)
def test_slots_start_where_it_says_with_the_shape_of_the_noise(name):
    layer = layer_of(name)
    initial = layer.initialization.start(layer, NOISE)
    assert initial.shape == NOISE.shape
    for ours, given in zip(layer(TOKENS, noise=NOISE), layer(TOKENS, slots=initial), strict=True):
        assert torch.equal(ours, given)
    assert torch.equal(layer.trace(TOKENS, noise=NOISE)[0].slots, initial)


@pytest.mark.parametrize("name", NAMES)
def test_its_parameters_are_the_layers_own_and_all_learn(name):
    layer = layer_of(name)
    own = layer.initialization.make_parameters()
    assert own
    assert set(own) <= {name for name, _ in layer.named_parameters()}
    layer(TOKENS, noise=NOISE)[0].square().sum().backward()
    for parameter in own:
        assert layer.get_parameter(parameter).grad.abs().sum() > 0
    other = layer_of(name)
    torch.manual_seed(3)
    other.initialize()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(TOKENS, noise=NOISE)[0], layer(TOKENS, noise=NOISE)[0])


@pytest.mark.parametrize("name", NAMES)
def test_slots_are_interchangeable_where_it_is_claimed_and_nowhere_else(name):
    layer, order = layer_of(name, torch.float64), torch.tensor([2, 0, 3, 1])
    slots = layer(TOKENS.double(), noise=NOISE)[0]
    exchanged = layer(TOKENS.double(), noise=NOISE[:, order])[0]
    follows = torch.allclose(exchanged, slots[:, order], rtol=0, atol=1e-10)
    assert follows == layer.initialization.interchangeable
    assert layer.initialization.takes(4)
    if layer.initialization.interchangeable:  # then nothing can depend on the number in training
        assert layer.initialization.takes(21)


@pytest.mark.parametrize("name", NAMES)
def test_it_works_in_every_precision_copied_and_by_functional_call(name):
    layer = layer_of(name)
    slots = layer(TOKENS, noise=NOISE)[0]
    assert torch.equal(copy.deepcopy(layer)(TOKENS, noise=NOISE)[0], slots)
    doubled = {key: 2 * value for key, value in layer.state_dict().items()}
    assert not torch.allclose(torch.func.functional_call(layer, doubled, (TOKENS,), {"noise": NOISE})[0], slots)
    torch.testing.assert_close(copy.deepcopy(layer).double()(TOKENS.double(), noise=NOISE)[0].float(), slots)
    half = copy.deepcopy(layer).bfloat16()(TOKENS.bfloat16(), noise=NOISE)[0]
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), slots, rtol=0.1, atol=0.1)
    compiled = torch.compile(layer, backend="eager")(TOKENS, noise=NOISE)[0]
    torch.testing.assert_close(compiled, slots)


def test_the_gaussian_draws_its_values_in_the_order_it_always_did():
    """The same seed gives the weights that it gave before initializations were classes."""
    layer = layer_of("gaussian")
    assert [name for name, _ in layer.named_parameters() if name.startswith("slots")] == ["slots_mu", "slots_log_sigma"]
    torch.manual_seed(2)
    plain = SlotAttention(8, hidden=16)
    torch.manual_seed(2)
    plain.initialize()
    state = torch.random.get_rng_state()
    bound = math.sqrt(6 / 9)
    torch.manual_seed(2)
    for linear in (plain.key, plain.query, plain.value, plain.mlp[0], plain.mlp[2]):
        torch.nn.init.xavier_uniform_(torch.empty_like(linear.weight))
    torch.nn.init.xavier_uniform_(torch.empty_like(plain.gru.weight_ih))
    torch.nn.init.orthogonal_(torch.empty_like(plain.gru.weight_hh))
    assert torch.equal(plain.slots_mu, torch.empty(8).uniform_(-bound, bound))
    assert torch.equal(plain.slots_log_sigma, torch.empty(8).uniform_(-bound, bound))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_learned_slots_are_the_same_for_every_image_and_noise():
    layer = layer_of("learned")
    assert layer.slots_initial.shape == (4, 8)
    initial = layer.initialization.start(layer, NOISE)
    assert torch.equal(initial[0], initial[1])
    assert torch.equal(layer(TOKENS, num_slots=4)[0], layer(TOKENS, noise=NOISE)[0])
    assert not torch.allclose(initial[0, 0], initial[0, 1])


def test_learned_slots_of_another_number_are_one_sentence():
    layer = layer_of("learned")
    with pytest.raises(ValueError, match="^num_slots is 21, but this model has a learned start of 4 slots: ask for 4"):
        layer(TOKENS, num_slots=21)
    with pytest.raises(ValueError, match="num_slots is 3, but this model has a learned start of 4 slots"):
        layer(TOKENS, noise=NOISE[:, :3])
    assert layer(TOKENS, slots=torch.randn(2, 21, 8))[0].shape == (2, 21, 8)  # given slots start where they are
    with pytest.raises(ValueError, match="the number of slots is missing; learned slots have a vector each: give"):
        SlotAttention(8, initialization="learned")
    with pytest.raises(ValueError, match="the number of slots is 0; learned slots have a vector each"):
        Learned(8, 0)


def test_names_instances_and_mistakes():
    own = Gaussian(8)
    assert SlotAttention(8, initialization=own).initialization is own
    assert SlotAttention(8, initialization=Learned(8, 5))(TOKENS, num_slots=5)[0].shape == (2, 5, 8)
    assert repr(Learned(8, 5)) == "Learned(dim=8, num_slots=5)"
    with pytest.raises(ValueError, match="gaussian is built for dim 7, the slots have 8; build it with dim=8"):
        SlotAttention(8, initialization=Gaussian(7))
    with pytest.raises(UnknownInitialization, match="no initialization 'gausian'; did you mean 'gaussian'"):
        make_initialization("gausian", 8)
    with pytest.raises(TypeError, match="initialization Nameless has no 'name'; each says name, label, where"):
        type("Nameless", (Initialization,), {})
    facts = {"name": "learned", "label": "x", "where": "x", "interchangeable": True}
    with pytest.raises(TypeError, match="initialization name 'learned' of Again is taken by slotnorm.init"):
        type("Again", (Initialization,), facts)
    with pytest.raises(TypeError, match="initialization Initialization defines no start"):
        Initialization(8).start(SlotAttention(8), NOISE)
