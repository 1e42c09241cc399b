"""Whether data may judge a policy: episodes that trained it are known again, in whatever file they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slater.certify.verdict import Gate
from slater.data import Dataset
from slater.errors import InputError
from slater.policy import parts_of
from slater.runs.held_out import HeldOut
from slater.runs.trained_on import TrainedOn, copied, recur

HELD_OUT = "held-out episodes"
#: how often a policy's own actions may be taken for another's
FALSE_ALARM = 0.001
OWN_ACTIONS = "the policy's own actions"


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
        said = f"{len(part.episodes)} of {len(data.episodes)} episodes were kept from training"
        said += f" (seed {kept.seed})"
        if trained_on is not None and not recur(part) and (copies := trained_on.may_judge(part)[1]).any():
            # of a log that has episodes twice, one may have trained and the other have been kept
            part = data.subset(np.asarray(kept.episodes)[~copies]) if not copies.all() else part
            said += f", of which {int(copies.sum())} are copies of episodes that trained"
            if copies.all():
                return part, Gate(HELD_OUT, False, said + ": nothing is left to judge by.")
            said += " and are left out"
        return part, Gate(HELD_OUT, True, said + ".")
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
    reason = "the data are not those that trained the policy."
    if fingerprint is None:
        reason = (
            "where the policy was trained is not known; it is taken that these episodes had no part in it."
        )
    return data, Gate(HELD_OUT, True, reason)


def independence(data: Dataset) -> Gate:
    """Whether no episode is a copy of another: copies count once, and are no evidence."""
    count, copies = len(data.episodes), copied(data)
    reason = f"{count} episodes, none a copy of another."
    if copies:
        reason = f"{copies} of {count} episodes are copies of others, so that they are not independent: "
        reason += "leave the copies out."
    return Gate("independent episodes", copies == 0, reason)


def own_episodes(
    data: Dataset, fingerprint: str | None, trained_on: TrainedOn | None, kept: HeldOut | None = None
) -> Gate:
    """Whether logged episodes can be the policy's own: those of its training log are of who acted before."""
    logged = 0
    parts = [] if trained_on is None else [trained_on]
    if kept is not None and kept.content:
        parts.append(TrainedOn.from_text(kept.content))
    if fingerprint and data.fingerprint == fingerprint:
        logged = len(data.episodes)
    elif parts and not recur(data):
        logged = int(np.any([part.may_judge(data)[1] for part in parts], axis=0).sum())
    reason = "no episode is known to be of another policy."
    if logged:
        reason = f"{logged} of {len(data.episodes)} episodes are of the log that trained the policy: "
        reason += "they are of the policies that made that log, not of itself."
    return Gate("the policy's own episodes", logged == 0, reason)


def own_actions(data: Dataset, policy: Any) -> Gate:
    """Whether the logged actions can be those that the policy takes, where it says how likely they are.

    Given what was seen, an action of the policy is as likely as another draw of it: what their
    log-likelihoods differ by is symmetric about 0, so that P(sum < -x sqrt(sum of squares)) is at most
    exp(-x^2 / 2). Actions that are likelier than a draw (a policy that acts with its likeliest) are its own
    too. Continuous actions count in steps of 1/256 of their range, since logs round.
    """
    rng = np.random.default_rng(0)
    members = [member for _, member in parts_of(policy)]
    if not all(hasattr(member, "log_probability") for member in members):
        return Gate(OWN_ACTIONS, True, "the policy does not say how likely its actions are.")

    def likely(member: Any, actions: Any) -> Any:
        if (low := getattr(member, "low", None)) is not None:
            step = (member.high - low) / 256
            actions = low + np.round((actions - low) / step) * step
        return np.asarray(member.log_probability(data.observations, actions), dtype=np.float64)

    logged = np.stack([likely(member, data.actions) for member in members])
    drawn = np.stack([likely(one, np.asarray(one.act(data.observations, rng=rng))) for one in members])
    # the member that acted in an episode is taken for the one under which its actions are likeliest
    starts = data.episodes.starts
    acted = np.repeat(np.add.reduceat(logged, starts, axis=1).argmax(axis=0), data.episodes.lengths)
    gap = np.clip((logged - drawn)[acted, np.arange(data.size)], -700.0, 700.0)
    spread = float(np.sqrt((gap**2).sum()))
    own = float(gap.sum()) >= -math.sqrt(2.0 * math.log(1.0 / FALSE_ALARM)) * spread
    reason = "are as likely under the policy as its own."
    if not own:
        reason = "are not those that this policy takes: they are far less likely than its own."
    return Gate(OWN_ACTIONS, own, f"the logged actions {reason}")
