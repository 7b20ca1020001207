"""Jobs on a Ray cluster: each a detached actor that starts the command, and outlives the process that submitted it.

Without an address Ray runs on this machine alone, bound to loopback, and ends with the process. Its usage statistics
and its dashboard are off.
"""

import dataclasses
import json
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from slotnorm.errors import UserError
from slotnorm.runtime import unix
from slotnorm.storage.seals import parse_json
from slotnorm.studies.launchers import Job, Launcher, State
from slotnorm.studies.relays import (
    Relay,
    jobs_folder,
    make_relays,
    read_receipt,
    receipt_path,
    require_shared,
    say_how_to_watch,
)

_NAMESPACE = "slotnorm"
_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_STOP = 90.0  # a command that was told to stop saves meanwhile


@dataclasses.dataclass
class Ray(Launcher):
    """Actors of a Ray cluster."""

    name: ClassVar[str] = "ray"

    gpus: float = 0.0
    """GPUs of a job, also a part of one; with more than one, torchrun starts a process for each"""
    address: str | None = None
    """The cluster's, as HOST:PORT, or auto for the one that this machine belongs to (default: this machine alone)"""

    def __post_init__(self) -> None:
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise UserError(f"--gpus is {self.gpus:g}, but must be a part of one GPU, as 0.5, or a whole number")

    def check(self, folders: Sequence[Path]) -> None:
        nodes = [node for node in _connect(self.address).nodes() if node["Alive"]]
        most = max((node["Resources"].get("GPU", 0.0) for node in nodes), default=0.0)
        if self.gpus > most:
            raise UserError(f"--gpus is {self.gpus:g}, but no node of the Ray cluster has more than {most:g}")
        require_shared(jobs_folder(folders).parent, [node["NodeManagerHostname"] for node in nodes])

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        ray = _connect(self.address)
        actor = ray.remote(Worker)
        tickets = []
        for relay in make_relays(jobs, processes=max(int(self.gpus), 1)):
            name = secrets.token_hex(16)
            facts = {"actor": name, "receipt": relay.receipt, "address": self.address}
            how = {"name": name, "lifetime": "detached", "namespace": _NAMESPACE, "max_restarts": 0}
            actor.options(**how, num_cpus=1, num_gpus=self.gpus).remote(dataclasses.asdict(relay))
            tickets.append(json.dumps(facts))
        return tickets

    def watch(self, tickets: Sequence[str]) -> list[State]:
        alive = _actors(_connect(self.address))
        return [self._look(_read(ticket), alive) for ticket in tickets]

    def explain(self, ticket: str) -> str:
        known = _read(ticket)
        if known is None or read_receipt(Path(known["receipt"])) is not None:
            return ""
        folder = Path(known["receipt"]).parent
        return f"its actor ended before it could write to {folder}, which nodes may not share"

    def cancel(self, tickets: Sequence[str], number: signal.Signals = signal.SIGTERM) -> None:
        jobs = [known for known in map(_read, tickets) if known is not None]
        addresses = dict.fromkeys(known["address"] for known in jobs)
        for address in addresses:
            ray = _connect(address if address == self.address else _own(address))
            alive = _actors(ray)
            _stop_actors(ray, [known for known in jobs if known["actor"] in alive], number)
            if len(addresses) > 1:  # one process, one cluster: the next one's turn
                ray.shutdown()

    def for_one_process(self) -> Launcher:
        return dataclasses.replace(self, gpus=min(self.gpus, 1.0))

    def goes_on(self, ticket: str) -> bool:
        known = _read(ticket)
        return known is not None and known["address"] is not None

    def leave(self, tickets: Sequence[str], number: signal.Signals) -> str:
        if self.address is None:  # a cluster of this process, which ends with it
            return super().leave(tickets, number)
        return say_how_to_watch([Path(known["receipt"]) for known in map(_read, tickets) if known is not None])

    def _look(self, known: dict[str, Any] | None, alive: set[str]) -> State:
        if known is None:
            return "lost"
        receipt = read_receipt(Path(known["receipt"]))
        if receipt is not None and isinstance(receipt.state, int):
            return receipt.state
        if known["actor"] not in alive:
            return "lost"
        return "waiting" if receipt is None else "running"


class Worker:
    """The actor of one job: starts its command, ends with it, and passes a signal on."""

    def __init__(self, relay: dict[str, Any]) -> None:
        import ray

        self._relay = Relay(**relay)
        self._itself = ray.get_runtime_context().current_actor
        self._started = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._started.wait()

    def stop(self, number: int) -> None:
        """Pass a signal on and wait for the command's end."""
        self._relay.stop(signal.Signals(number))

    def _run(self) -> None:
        """In one thread, whose end, with the actor's, tells the command to save (`relays`)."""
        import ray

        try:
            self._relay.start()
            self._started.set()
            self._relay.wait()
        except (UserError, OSError):  # the folder cannot be written here, and its missing receipt says so
            self._started.set()
        finally:
            ray.kill(self._itself)  # it would keep its GPUs from others


def _connect(address: str | None) -> Any:
    """Ray, connected to a cluster, or to one of this process alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # off unless asked for
    if address is None:
        # bind to 127.0.0.1, as Ray does on other systems for its firewall's sake
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # whoever has the token may run code; one of our own leaves none in the home folder
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs ray; install it by pip install 'slotnorm[ray]'") from None
    if ray.is_initialized():
        return ray
    if address is not None:
        _require_listener(address)
    more: dict[str, Any] = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(
            address=address or "local", namespace=_NAMESPACE, logging_level=logging.ERROR, log_to_driver=False,
            configure_logging=False, **more,
        )  # fmt: skip
    except Exception as error:  # also of no kind of its own, as when it took too long on a busy machine
        reason = " ".join(str(error).split())[:200].rstrip(".")
        if address is None:
            raise UserError(f"Ray cannot start here: {reason}; the same command tries again") from None
        raise UserError(
            f"Ray cannot join --address {address}: {reason}; give that of a cluster that runs, or leave it out"
        ) from None
    return ray


def _own(address: str | None) -> str | None:
    """The address that a file says, if it is this machine's or the environment says the same.

    A cluster can run code on whoever connects to it, so that a file alone does not decide.
    """
    host = (address or "auto").rpartition(":")[0].strip("[]")
    if address in (None, "auto", os.environ.get("RAY_ADDRESS")) or host in ("127.0.0.1", "localhost", "::1"):
        return address
    raise UserError(
        f"the runs' job.json say that their jobs are on the Ray cluster at {address}; if that is yours, set "
        f"RAY_ADDRESS={address} and give the command again"
    )


def _require_listener(address: str) -> None:
    """Refuse an address at which nothing answers: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"there is no Ray cluster at --address {address}: {error}") from None


def _actors(ray: Any) -> set[str]:
    """The names of our actors that wait or run."""
    return {known["name"] for known in ray.util.list_named_actors(all_namespaces=True)}


def _stop_actors(ray: Any, jobs: Sequence[dict[str, Any]], number: signal.Signals) -> None:
    """Have the commands of actors save and end, all at once; those that have not begun are taken out of the queue."""
    ending = []
    for known in jobs:
        try:
            actor = ray.get_actor(known["actor"], _NAMESPACE)
        except ValueError:  # it has ended since
            continue
        if read_receipt(Path(known["receipt"])) is not None and number != unix.KILL:
            ending.append(actor.stop.remote(int(number)))
        else:
            ray.kill(actor)
    if ending:
        ray.wait(ending, num_returns=len(ending), timeout=_SECONDS_TO_STOP)


def _read(ticket: str) -> dict[str, Any] | None:
    """What a ticket says; None when it is not one of ours."""
    try:
        known = parse_json(ticket.encode(), "a ticket")
        address = None if known["address"] is None else str(known["address"])
        return {"actor": str(known["actor"]), "receipt": str(receipt_path(known["receipt"])), "address": address}
    except (ValueError, TypeError, KeyError):
        return None
