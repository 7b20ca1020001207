"""The model, its optimizer and one step of learning; all of its state is tensors, and no random number is among it."""

import dataclasses
import signal
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from slotnorm.config import Experiment
from slotnorm.data.batches import Batch
from slotnorm.errors import NonFinite
from slotnorm.models.building import build
from slotnorm.models.weights import require_fit
from slotnorm.runtime import randomness
from slotnorm.runtime.ranks import Ranks, lost_rank_named
from slotnorm.runtime.torch_internals import divide_
from slotnorm.runtime.unix import ENDING
from slotnorm.training.optimizer import Adam
from slotnorm.training.schedule import adam_epsilon, learning_rate

_HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step came to, over all ranks."""

    loss: float
    gradient_norm: float
    learning_rate: float
    stop: signal.Signals | None
    """A signal that some rank was sent."""

    @property
    def numbers(self) -> dict[str, float]:
        """What metrics.jsonl says of the step."""
        return {"loss": self.loss, "gradient_norm": self.gradient_norm, "learning_rate": self.learning_rate}


class Learner:
    """Learns one experiment; the same batches give the same weights on any number of ranks, up to rounding."""

    def __init__(self, experiment: Experiment, ranks: Ranks) -> None:
        self.experiment, self.ranks = experiment, ranks
        self.model = build(experiment).to(ranks.device).train()
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = Adam(self.parameters)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=experiment.recipe.precision == "float16")

    def learn(self, batch: Batch, stop: signal.Signals | None = None) -> Step:
        """One optimizer step on this rank's share of a batch, taken only if all ranks' numbers are finite."""
        recipe = self.experiment.recipe
        with lost_rank_named():
            loss, stop = self.gradients(batch, stop)
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        norm = get_total_norm(gradients)
        self._require_finite(batch.step, loss, float(norm))
        if recipe.clip is not None:
            clip_grads_with_norm_(self.parameters.values(), recipe.clip, norm)
        rate = learning_rate(recipe, batch.step)
        self.scaler.step(self.optimizer, rate, adam_epsilon(recipe, batch.step))  # type: ignore[arg-type]
        self.scaler.update()
        return Step(loss, float(norm), rate, stop)

    def gradients(self, batch: Batch, stop: signal.Signals | None = None) -> tuple[float, signal.Signals | None]:
        """Leave the gradient of the global batch's loss in the parameters; returns that loss and any rank's signal."""
        for parameter in self.parameters.values():
            parameter.grad = None
        loss = self.loss(batch)
        self.scaler.scale(loss).backward()
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        # loss and signals travel with the gradients: one exchange per step, and all ranks decide alike
        extra = torch.stack([loss.detach(), *(loss.new_tensor(float(stop == number)) for number in ENDING)])
        self.ranks.sum_([*gradients, extra])
        if self.ranks.world_size > 1:
            divide_(gradients, self.ranks.world_size)
        self.scaler.unscale_(self.optimizer)  # type: ignore[arg-type]  # after the exchange: all ranks see an overflow
        received = [number for number, count in zip(ENDING, extra[1:].tolist(), strict=True) if count]
        return float(extra[0]) / self.ranks.world_size, next(iter(received), None)

    def loss(self, batch: Batch) -> Tensor:
        """The model's mean loss over this rank's images."""
        experiment, device = self.experiment, self.ranks.device
        inputs = self.model.prepare(getattr(batch, self.model.input))
        keys: list[tuple[int, ...]] = [(batch.step, sample) for sample in batch.sample.tolist()]
        noise = randomness.slot_noise(experiment.seed, "slots", keys, experiment.slots, experiment.recipe.model.dim)
        half = _HALVES.get(experiment.recipe.precision)
        with torch.autocast(device.type, dtype=half, enabled=half is not None):
            decomposition = self.model(
                inputs,
                num_slots=experiment.slots,
                iterations=experiment.recipe.iterations,
                noise=torch.from_numpy(noise).to(device),
            )
        return self.model.loss(decomposition, inputs, batch.properties)

    def _require_finite(self, step: int, loss: float, norm: float) -> None:
        overflow_is_normal = self.scaler.is_enabled() and self.scaler.get_scale() > 1.0  # the scaler skips such a step
        for name, value in (("loss", loss), ("gradient's norm", norm)):
            if not (value - value == 0.0 or (name != "loss" and overflow_is_normal)):
                scheme = type(self.model.slot_attention.normalization)
                codes = "" if scheme.__module__.startswith("slotnorm.") else f"at the codes of {scheme.__name__}, "
                raise NonFinite(
                    f"the {name} is {value} at step {step}; the weights were left as they were and the last checkpoint "
                    f"stands: look {codes}at the data, or train anew with a lower --recipe.learning-rate or "
                    "--recipe.clip 1"
                )

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state, and the gradient scaler's where there is one, by name."""
        if not self.scaler.is_enabled():
            return self.optimizer.state
        state = self.scaler.state_dict()
        scaler = torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
        return {**self.optimizer.state, "scaler": scaler}

    def restore(self, model: dict[str, Tensor], optimizer: dict[str, Tensor], path: Path) -> None:
        """Continue from saved tensors; `path`, where they come from, is named when they do not fit."""
        require_fit(self.model.state_dict(), model, path)
        require_fit(self.optimizer_tensors(), optimizer, path)
        self.model.load_state_dict(model)
        for name, tensor in self.optimizer.state.items():
            tensor.copy_(optimizer[name])
        self._restore_scaler(optimizer)

    def take_from_first(self) -> None:
        """Take over rank 0's state."""
        optimizer = self.optimizer_tensors()
        self.ranks.copy_from_first_([*self.model.state_dict().values(), *optimizer.values()])
        self._restore_scaler(optimizer)

    def _restore_scaler(self, optimizer: dict[str, Tensor]) -> None:
        if self.scaler.is_enabled():
            scale, growth = optimizer["scaler"].tolist()
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale, "_growth_tracker": int(growth)})
