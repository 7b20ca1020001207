"""A SLURM cluster on this machine: munge, a controller and two node daemons, started directly, on loopback alone."""

import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORTS = range(16000, 20000)  # below those that systems give away
DEVICES = ("/dev/zero", "/dev/full")  # declared as GPUs, so that the scheduler counts them; no job touches one
GPUS = len(DEVICES)
PATIENCE = 600.0  # seconds; the machine may be busy
URGENT = "urgent"  # a partition whose jobs take nodes away from those of the other one, which are requeued

CONFIGURATION = """\
ClusterName=slotnorm
SlurmctldHost=localhost
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=30
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
GresTypes=gpu
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
KillWait=180
MessageTimeout=60
BatchStartTimeout=120
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=1 Gres=gpu:{gpus} State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=1 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
PartitionName={urgent} Nodes=n[1-2] PriorityTier=10 MaxTime=INFINITE State=UP
"""


@contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons with their files in `folder`; the environment in which SLURM's commands find them."""
    (folder / "state").mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    port, first, second = free_ports(3)
    text = CONFIGURATION.format(folder=folder, port=port, first=first, second=second, gpus=GPUS, urgent=URGENT)
    configuration = folder / "slurm.conf"
    configuration.write_text(text)
    (folder / "gres.conf").write_text("".join(f"NodeName=n[1-2] Name=gpu File={device}\n" for device in DEVICES))
    options = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
    words = [f"--{option}={folder / file}" for option, file in {**options, "seed-file": "munge.seed"}.items()]
    subprocess.run(["munged", "--force", *words], check=True)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    try:
        subprocess.run(["slurmctld", "-f", configuration], env=environment, check=True)
        for node in ("n1", "n2"):
            subprocess.run(["slurmd", "-N", node, "-f", configuration], env=environment, check=True)
        wait_for_nodes(environment)
        yield environment
    finally:
        with contextlib.ExitStack() as stack:  # each is stopped, whatever becomes of the one before
            for file in ("munge.pid", "slurmctld.pid", "slurmd-n2.pid", "slurmd-n1.pid"):
                stack.callback(stop, folder / file)
            subprocess.run(["scancel", "--me"], env=environment, check=False)


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which nobody listens, so that two clusters do not meet."""
    free: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            return free
    raise AssertionError("all ports are taken")


def wait_for_nodes(environment: dict[str, str], seconds: float = PATIENCE) -> None:
    """Until both nodes take jobs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%D %t"], env=environment, capture_output=True, text=True, check=False
        )
        if done.stdout.strip() == "2 idle":
            return
        time.sleep(0.2)
    raise AssertionError(f"the nodes do not come up: {done.stdout} {done.stderr}")


def stop(pid_file: Path) -> None:
    """End one daemon that we started, by its own number; it removes the file when it ends."""
    if not pid_file.exists():
        return
    os.kill(int(pid_file.read_text()), signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while pid_file.exists():
        assert time.monotonic() < deadline, f"the daemon of {pid_file} does not end"
        time.sleep(0.1)
