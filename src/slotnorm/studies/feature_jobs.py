"""Features as jobs of a launcher: each computes a range of scenes; they are put together when all are whole."""

from collections.abc import Sequence
from pathlib import Path

from slotnorm.data.features import SHARD, default_folder, require_scenes, shard_folder
from slotnorm.data.manifest import MANIFEST
from slotnorm.data.scenes import Scenes
from slotnorm.errors import UserError
from slotnorm.runtime.shards import Shard
from slotnorm.studies.jobs import Task, complete, require_success, slotnorm_job
from slotnorm.studies.launchers import RETRIES, Job, Launcher


class ShardTask(Task):
    """The features of one range of scenes; size and progress count shards."""

    size = 1

    def __init__(self, path: Path, words: Sequence[str]) -> None:
        super().__init__()
        self.path, self.words = path, words

    def prepare(self) -> Job:
        self.path.mkdir(parents=True, exist_ok=True)
        return slotnorm_job(["data", "features", *self.words], self.path.absolute())

    @property
    def is_done(self) -> bool:
        try:
            Scenes.open(self.path / SHARD)
        except UserError:
            return False
        return True

    @property
    def progress(self) -> int:
        return int((self.path / SHARD / MANIFEST).is_file())


def plan_shards(
    scenes: Scenes, words: Sequence[str], shards: int, out: Path | None = None, batch_size: int = 32
) -> list[ShardTask]:
    """A task for each shard; `words` are what `slotnorm data features` is told besides it.

    Those that are whole are marked as skipped, all of them where the set is there.
    """
    require_scenes(len(scenes), shards, batch_size)
    directory = default_folder(scenes) if out is None else out
    tasks = []
    for shard in (Shard(number, shards) for number in range(shards)):
        more = ["--out", str(directory.absolute()), "--shards", str(shard.of), "--shard", str(shard.number)]
        tasks.append(ShardTask(shard_folder(directory, shard), [*words, *more]))
        if (directory / MANIFEST).is_file() or tasks[-1].is_done:
            tasks[-1].state = "skipped"
    return tasks


def compute_on(launcher: Launcher, tasks: Sequence[ShardTask], retries: int = RETRIES) -> None:
    """Have the launcher compute every shard that is missing; `join_shards` then makes them one set."""
    complete(tasks, launcher.for_one_process(), "shards", retries)
    require_success(tasks, "shards")
