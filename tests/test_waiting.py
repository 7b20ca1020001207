"""What stands between a command and what its user waits for."""

import gc
import importlib
import subprocess
import sys

import pytest
import torch

import slotnorm as sn
from slotnorm.cli.dispatch import importing
from slotnorm.models.building import build, outline

EXPERIMENTS = ("toy", "toy-features-2-3", "toy-properties", "clevr-6-7")


def test_starting_to_train_or_to_segment_loads_neither_a_compiler_nor_scipy():
    code = (
        "import sys, numpy\n"
        "import slotnorm.training.loop, slotnorm.report.segmenter\n"
        "import slotnorm as sn\n"
        "from slotnorm.models.building import outline\n"
        f"for name in {EXPERIMENTS}: outline(sn.experiment(name))\n"
        "sn.segment(numpy.zeros((48, 64, 3), numpy.uint8), model='toy-batch_norm')\n"
        "loaded = {'sympy', 'torch._dynamo', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded, sorted(loaded)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_outline_has_the_names_shapes_and_types_of_the_model(name):
    experiment = sn.experiment(name)
    outlined, built = outline(experiment).state_dict(), build(experiment).state_dict()
    assert all(tensor.is_meta for tensor in outlined.values())
    assert [(key, tensor.shape, tensor.dtype) for key, tensor in outlined.items()] == [
        (key, tensor.shape, tensor.dtype) for key, tensor in built.items()
    ]


def test_a_layer_without_numbers_still_refuses_an_unknown_protocol():
    with torch.device("meta"), pytest.raises(ValueError, match="protocol is 'ours'"):
        sn.SlotAttention(8, protocol="ours")


def test_garbage_is_collected_again_after_imports_even_if_one_fails():
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), importing():
        importlib.import_module("slotnorm.does_not_exist")
    assert gc.isenabled()
