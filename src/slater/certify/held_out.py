"""Whether data may judge a policy: episodes that trained it are known again, in whatever file they are."""

from __future__ import annotations

import numpy as np

from slater.certify.verdict import Gate
from slater.data import Dataset
from slater.errors import InputError
from slater.runs.held_out import HeldOut
from slater.runs.trained_on import TrainedOn, copied, recur

__all__ = ["certifying_part", "independence", "own_episodes"]

HELD_OUT = "held-out episodes"


def certifying_part(
    data: Dataset, kept: HeldOut | None, fingerprint: str | None, trained_on: TrainedOn | None = None
) -> tuple[Dataset, Gate]:
    """The episodes of `data` that may judge a policy, and whether any did not train it.

    kept: what the policy's run held out; fingerprint: of the data that trained it; trained_on: of every
    episode of them; all None for a policy of unknown origin.
    """
    if kept is not None and data.fingerprint == kept.fingerprint:
        if not np.isin(kept.episodes, np.arange(len(data.episodes))).all():
            raise InputError("the record of held-out episodes names episodes that the data do not have.")
        part = data.subset(list(kept.episodes))
        return part, Gate(
            HELD_OUT, True,
            f"{len(part.episodes)} of {len(data.episodes)} episodes were kept from training "
            f"(seed {kept.seed}).",
        )  # fmt: skip
    closed = Gate(
        HELD_OUT, False,
        "these data trained the policy, which fits their luck too, so they cannot judge it: train with a "
        "hold-out, or give other episodes.",
    )  # fmt: skip
    if fingerprint and data.fingerprint == fingerprint:
        return data, closed
    if trained_on is not None and not recur(data):
        free, trained = trained_on.may_judge(data)
        if not free.any():
            return data, closed
        if trained.any():
            free[-1] &= bool(data.episodes.complete[-1])
            return data.subset(free), Gate(
                HELD_OUT, True,
                f"{int(trained.sum())} of {len(data.episodes)} episodes trained the policy and are left out.",
            )  # fmt: skip
    if fingerprint is None:
        reason = (
            "where the policy was trained is not known; it is taken that these episodes had no part in it."
        )
    else:
        reason = "the data are not those that trained the policy."
    return data, Gate(HELD_OUT, True, reason)


def independence(data: Dataset) -> Gate:
    """Whether no episode is a copy of another: copies count once, and are no evidence."""
    count, copies = len(data.episodes), copied(data)
    reason = f"{count} episodes, none a copy of another."
    if copies:
        reason = (
            f"{copies} of {count} episodes are copies of others, so that they are not independent: leave "
            "the copies out."
        )
    return Gate("independent episodes", copies == 0, reason)


def own_episodes(data: Dataset, fingerprint: str | None, trained_on: TrainedOn | None) -> Gate:
    """Whether logged episodes can be the policy's own: those that trained it are of whoever acted before."""
    trained = 0
    if fingerprint and data.fingerprint == fingerprint:
        trained = len(data.episodes)
    elif trained_on is not None and not recur(data):
        trained = int(trained_on.may_judge(data)[1].sum())
    reason = "no episode is known to be of another policy."
    if trained:
        reason = (
            f"{trained} of {len(data.episodes)} episodes trained the policy: they are of the policies that "
            "made its log, not of itself."
        )
    return Gate("the policy's own episodes", trained == 0, reason)
