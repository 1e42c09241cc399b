"""Episodes that are kept from training so that they can judge what was trained.

A run that holds episodes out writes `held_out.json` beside its record: the fingerprint of the whole data and
the numbers of the episodes. Whoever certifies finds by it whether the data at hand trained the policy
(`slater.certify.held_out`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slater.data import Dataset, StoredDataset
from slater.disk import make_folder, typed, write_json
from slater.errors import InputError
from slater.runs.trained_on import TrainedOn

#: name of the file in the folder of a run
FILE = "held_out.json"
#: of the split: the same episodes for every seed and setting of a sweep, and for its certificates
SEED = 0


@dataclass(frozen=True)
class HeldOut:
    """What a run kept from training.

    fingerprint, training: SHA-256 of the whole data, and of the rows that train; fraction, seed: of the split
    episodes: numbers of the kept episodes in the whole data
    content: by which they are known in other files (`slater.runs.trained_on`)
    """

    fingerprint: str
    training: str
    fraction: float
    seed: int
    episodes: tuple[int, ...]
    content: str = ""

    def save(self, folder: str | Path) -> None:
        """Write it beside the run's record; atomic."""
        write_json(make_folder(folder) / FILE, vars(self))


def hold_out(data: Dataset, fraction: float, seed: int) -> tuple[Dataset, HeldOut]:
    """The part that trains, and what is kept: whole episodes, drawn from `seed`."""
    train, held = data.episodes.split(fraction, seed)
    rest, numbers = data.subset(train), tuple(int(e) for e in held)
    content = TrainedOn.of(data.subset(held)).text()
    return rest, HeldOut(data.fingerprint, rest.fingerprint, fraction, seed, numbers, content)


def read_held_out(folder: str | Path) -> HeldOut | None:
    """What the run in `folder` kept, or None."""
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        found: HeldOut = typed(HeldOut, json.loads(path.read_text()))
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not readable as a record of held-out episodes ({error}).") from error


def training_part(data: Dataset | StoredDataset, kept: HeldOut | None) -> Dataset | StoredDataset:
    """The episodes of `data` that trained, where `data` are the whole that something was kept from."""
    if kept is None or data.fingerprint != kept.fingerprint:
        return data
    return data.subset(np.setdiff1d(np.arange(len(data.episodes)), kept.episodes))


def without_held_out(data: Any, share: float | None) -> tuple[Any, HeldOut | None]:
    """The episodes that train, and what is kept from them; all of them where no share is given."""
    if share is None:
        return data, None
    if not 0.0 < share < 1.0:
        raise InputError(
            f"the share of episodes to hold out is {share:g}; it must be between 0 and 1, as 0.2."
        )
    if not isinstance(data, Dataset):
        raise InputError("episodes can be held out of data that fit in memory only; allow more memory.")
    return hold_out(data, share, SEED)
