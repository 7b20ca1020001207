"""Sets that are the beginning of one endless sequence of scenes: a folder for each length that was asked for."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from slotnorm.data.cache import require_writable
from slotnorm.data.manifest import MANIFEST
from slotnorm.data.scenes import Scenes
from slotnorm.errors import Locked

_log = logging.getLogger(__name__)

Build = Callable[[Path, Scenes | None], Scenes]
"""Makes the set in a folder; finished scenes, if there are any, are its beginning."""

_SECONDS_BETWEEN_LOOKS = 0.2


def open_or_build(folder: Path, num: int, build: Build) -> Scenes:
    """The first `num` scenes of the sequence that `folder` keeps, built in `folder/NUM` when they are not there.

    A longer set serves a shorter request; a shorter one is the beginning of a longer one and stays, since runs may use
    it. A set that another process makes is waited for.
    """
    finished = sorted(int(path.parent.name) for path in folder.glob(f"*/{MANIFEST}") if path.parent.name.isdecimal())
    for available in finished:
        if available >= num:
            return Scenes.open(folder / str(available))[:num]
    require_writable(folder)
    start = Scenes.open(folder / str(finished[-1])) if finished else None
    waiting = False
    while True:
        try:
            return build(folder / str(num), start)
        except Locked as error:
            if not waiting:
                _log.info(f"waiting: {error}")
            waiting = True
            time.sleep(_SECONDS_BETWEEN_LOOKS)
