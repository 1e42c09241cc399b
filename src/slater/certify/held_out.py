"""Whether data may judge a policy: those that trained it are recognised by their fingerprint."""

from __future__ import annotations

import numpy as np

from slater.certify.verdict import Gate
from slater.data import Dataset
from slater.errors import InputError
from slater.runs.held_out import HeldOut

__all__ = ["certifying_part"]


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
