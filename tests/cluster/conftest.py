import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import ray_nodes  # noqa: E402
import slurm_daemons  # noqa: E402

import clusters  # noqa: E402
import tiny  # noqa: E402


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_scenes(tmp_path_factory.mktemp("data")).directory


@pytest.fixture(autouse=True)
def no_sweep_is_left() -> Iterator[None]:
    """A test that fails leaves no process behind."""
    yield
    for sweep in clusters.Sweep.started:
        if sweep.process.poll() is None:
            sweep.process.kill()
            sweep.process.wait()
    clusters.Sweep.started.clear()


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, str]:
    """The weights of six runs of local processes."""
    sweep = clusters.Sweep(tmp_path_factory.mktemp("local"), data, [*SIX, "--jobs", "2"])
    assert sweep.wait() == 0, sweep.said
    return clusters.weights(sweep.runs)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_daemons.running(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture(scope="session")
def ray() -> Iterator[ray_nodes.Nodes]:
    with ray_nodes.running() as nodes:
        yield nodes


SIX = ["--norms", "layer_norm", "weighted_sum", "--seeds", "1", "2", "3"]
