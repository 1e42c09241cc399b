"""Episodes that are kept from training so that they can judge what was trained.

A run that holds episodes out writes `held_out.json` beside its record: the fingerprint of the whole data and
the numbers of the episodes. Whoever certifies finds by it whether the data at hand trained the policy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slater.certify.verdict import Gate
from slater.data import Dataset
from slater.disk import write_atomic
from slater.errors import InputError

__all__ = ["FILE", "HeldOut", "certifying_part", "hold_out", "read_held_out", "training_part"]

#: name of the file in the folder of a run
FILE = "held_out.json"


@dataclass(frozen=True)
class HeldOut:
    """What a run kept from training.

    Attributes:
        fingerprint: SHA-256 of the whole data, before the split.
        training: SHA-256 of the rows that train.
        fraction, seed: of the split.
        episodes: numbers of the kept episodes in the whole data.

    """

    fingerprint: str
    training: str
    fraction: float
    seed: int
    episodes: tuple[int, ...]

    def save(self, folder: str | Path) -> None:
        """Write it beside the run's record; atomic."""
        write_atomic(Path(folder) / FILE, (json.dumps(vars(self), indent=1) + "\n").encode())


def hold_out(data: Dataset, fraction: float, seed: int) -> tuple[Dataset, HeldOut]:
    """The part that trains, and what is kept: whole episodes, drawn from `seed`."""
    train, held = data.episodes.split(fraction, seed)
    rest = data.subset(train)
    return rest, HeldOut(data.fingerprint, rest.fingerprint, fraction, seed, tuple(int(e) for e in held))


def read_held_out(folder: str | Path) -> HeldOut | None:
    """What the run in `folder` kept, or None."""
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text())
        return HeldOut(
            str(record["fingerprint"]), str(record["training"]), float(record["fraction"]),
            int(record["seed"]), tuple(int(e) for e in record["episodes"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not readable as a record of held-out episodes ({error}).") from error


def certifying_part(data: Dataset, kept: HeldOut | None, trained_on: str | None) -> tuple[Dataset, Gate]:
    """The episodes of `data` that may judge a policy, and whether any did not train it.

    kept: what the policy's run held out; trained_on: fingerprint of the data that trained it; both None for a
    policy of unknown origin.
    """
    name = "held-out episodes"
    if kept is not None and data.fingerprint == kept.fingerprint:
        if not np.isin(kept.episodes, np.arange(len(data.episodes))).all():
            raise InputError("the record of held-out episodes names episodes that the data do not have.")
        part = data.subset(list(kept.episodes))
        return part, Gate(
            name, True,
            f"{len(part.episodes)} of {len(data.episodes)} episodes were kept from training "
            f"(seed {kept.seed}).",
        )  # fmt: skip
    if trained_on and data.fingerprint == trained_on:
        return data, Gate(
            name, False,
            "these data trained the policy, which fits their luck too, so they cannot judge it: train with a "
            "hold-out, or give other episodes.",
        )  # fmt: skip
    if trained_on is None:
        reason = (
            "where the policy was trained is not known; it is taken that these episodes had no part in it."
        )
    else:
        reason = "the data are not those that trained the policy (another fingerprint)."
    return data, Gate(name, True, reason)


def training_part(data: Dataset, kept: HeldOut | None) -> Dataset:
    """The episodes of `data` that trained, where `data` are the whole that something was kept from."""
    if kept is None or data.fingerprint != kept.fingerprint:
        return data
    return data.subset(np.setdiff1d(np.arange(len(data.episodes)), kept.episodes))
