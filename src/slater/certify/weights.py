"""Importance weights of a log with propensities, and whether the propensities can be right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import Above, betting_lower
from slater.certify.verdict import Gate
from slater.data import Dataset
from slater.errors import InputError
from slater.policy import parts_of

F64 = NDArray[np.float64]

#: how often right propensities may be taken for wrong ones
FALSE_ALARM = 0.001


@dataclass(frozen=True)
class Weights:
    """Weights of E episodes padded to T steps, for K members: w_t includes the action of step t.

    members: (K,) probabilities; cumulative: (K, E, T); a step after the end keeps the last weight.
    ratios: (K, N) of every row of the data. lengths: (E,) steps; chosen: (E,) numbers of the episodes.
    """

    members: F64
    cumulative: F64
    ratios: F64
    lengths: NDArray[np.int64]
    chosen: NDArray[np.int64]

    @property
    def mixed(self) -> F64:
        """Weights of the mixture, shape (E, T)."""
        return np.asarray(np.einsum("k,ket->et", self.members, self.cumulative))

    @property
    def effective(self) -> float:
        """Effective number of episodes, (sum w)^2 / sum w^2, at the last step."""
        last = self.mixed[:, -1]
        share = last / max(float(last.max()), 1e-300)  # squares of the largest weights would overflow
        total = float((share**2).sum())
        return float(share.sum()) ** 2 / total if total > 0 else 0.0


def propensities_of(data: Dataset) -> F64:
    """Of every row, (N,); refused if there are none, or one cannot be."""
    if data.propensity is None:
        raise InputError(
            "the data have no propensities; add a column `propensity`, or judge by another tier."
        )
    bad = ~(np.isfinite(data.propensity) & (data.propensity > 0))
    if data.discrete:
        bad |= data.propensity > 1 + 1e-6
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        range_text = "above 0 and at most 1" if data.discrete else "a density above 0"
        raise InputError(f"the propensity of row {row} is {data.propensity[row]:g}; it must be {range_text}.")
    return data.propensity


def episode_weights(data: Dataset, policy: Any, horizon: int | None = None) -> Weights:
    """The weights of every complete episode of `data` under `policy`.

    A policy must say how likely an action is: `log_probability(observations, actions)` of shape `(batch,)`,
    as the network policies of Slater do.
    """
    logged = np.log(propensities_of(data))
    table = data.episodes
    chosen = np.flatnonzero(table.complete)
    T = horizon or data.horizon
    if len(chosen) == 0 or int(table.lengths[chosen].max()) > T:
        longest = int(table.lengths[chosen].max()) if len(chosen) else 0
        raise InputError(f"the longest complete episode has {longest} steps, but the horizon is {T}.")
    members = parts_of(policy)
    padded = np.ones((len(members), len(chosen), T))
    ratios = np.ones((len(members), data.size))
    for k, (_, member) in enumerate(members):
        says = getattr(member, "log_probability", None)
        if says is None:
            raise InputError(
                f"a {type(member).__name__} does not say how likely an action is (log_probability), so "
                "propensities cannot judge it; run it instead."
            )
        said = _likelihood(says(data.observations, data.actions), type(member).__name__, data)
        ratios[k] = np.exp(np.clip(said - logged, -700.0, 700.0))
        padded[k] = padded_rows(data, chosen, ratios[k], T, 1.0)
    cumulative = np.exp(np.clip(np.cumsum(np.log(np.maximum(padded, 1e-300)), axis=2), -700.0, 600.0))
    return Weights(np.array([w for w, _ in members]), cumulative, ratios, table.lengths[chosen], chosen)


def _likelihood(said: Any, kind: str, data: Dataset) -> F64:
    """What `log_probability` gave, (N,); an InputError if it is none."""
    try:
        found = np.asarray(said, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    wrong = ""
    if found.shape != (data.size,):
        wrong = f"an array of shape {found.shape} for {data.size} rows"
    elif np.isnan(found).any() or (found == np.inf).any():
        wrong = "a value that is not a number, or infinity"
    elif data.discrete and (found > 1e-6).any():
        wrong = f"{found.max():.4g}, a probability above 1"
    if wrong:
        raise InputError(
            f"the log_probability of a {kind} gave {wrong}; it must give the logarithm of the "
            "probability (or density) of every row's action, of shape (batch,)."
        )
    return found


def padded_rows(data: Dataset, chosen: NDArray[np.int64], column: F64, horizon: int, after: float) -> F64:
    """One number per row as (E, T), `after` where an episode has ended."""
    table = data.episodes
    padded = np.full((len(chosen), horizon), after)
    for e, number in enumerate(chosen):
        rows = slice(int(table.starts[number]), int(table.stops[number]))
        padded[e, : rows.stop - rows.start] = column[rows]
    return padded


def checked_propensities(data: Dataset, ratios: F64) -> Gate:
    """Whether the propensities can be right; by themselves, whatever the policy, and for it.

    1{a = k} / mu(a|s) has a mean of at most 1 for every action k, and for a box of continuous actions divided
    by its volume, so has pi(a|s) / mu(a|s), `ratios` (K, N), given all that went before. Propensities that
    are too small make such a mean larger, and costs look smaller. Too large ones err on the safe side.
    """
    mu = propensities_of(data)
    tests: dict[str, F64] = {f"the weight of a step by member {k + 1}": one for k, one in enumerate(ratios)}
    half = data.size // 2
    later = np.arange(data.size) >= half
    first = slice(0, max(half, 1))  # where to look is decided by the first half of the rows
    if data.discrete:
        tests["1 / (number of actions x propensity)"] = 1.0 / (data.num_actions * mu)
        often = np.bincount(data.actions, minlength=data.num_actions).argsort()[::-1][:20]
        each = {action: np.where(data.actions == action, 1.0, 0.0) / mu for action in often}
        tests |= {f"1 / propensity of action {action}": one for action, one in each.items()}
        for entry in range(min(data.observation_dim, 4)):
            high = data.observations[:, entry] > np.median(data.observations[first, entry])
            for side, rows in (("high", high), ("low", ~high)):
                for action in often[:4]:
                    name = f"1 / propensity of action {action} where observation {entry} is {side}"
                    tests[name] = np.where(rows, each[action], 1.0)[later]
    else:
        # not their tails, where one over a density is large and seldom
        low, high = np.quantile(data.actions[first], [0.05, 0.95], axis=0)
        if (high > low).all():
            inside = ((data.actions >= low) & (data.actions <= high)).all(axis=1)
            volume = float(np.prod((high - low).astype(np.float64)))
            tests["1 / density over the range of actions"] = (np.where(inside, 1.0, 0.0) / mu / volume)[later]
            for entry in range(data.action_dim):
                middle = np.median(data.actions[first, entry])
                if not low[entry] < middle < high[entry]:
                    continue
                below = data.actions[:, entry] <= middle
                for side, rows, share in (
                    ("lower", below, middle - low[entry]),
                    ("upper", ~below, high[entry] - middle),
                ):
                    part = volume * float(share) / float(high[entry] - low[entry])
                    name = f"1 / density over the {side} half of action {entry}"
                    tests[name] = (np.where(inside & rows, 1.0, 0.0) / mu / part)[later]
    error = FALSE_ALARM / len(tests)
    for size in sorted({len(values) for values in tests.values()})[::-1]:  # all rows, or the later ones
        names = [name for name, values in tests.items() if len(values) == size]
        bets = Above(np.stack([tests[name] for name in names], axis=1))
        for name, most in zip(names, bets.capital(1.0 + 1e-6, error).max(axis=0), strict=True):
            if most >= 1.0:
                least = betting_lower(tests[name], 0.0, math.inf, error)
                why = f"the propensities are wrong: {name} has a mean of {tests[name].mean():.3g}, at least "
                why += f"{least:.3g}, where it is at most 1 if they are right."
                return Gate("propensities", False, why)
    return Gate("propensities", True, f"in none of {len(tests)} tests were they found to be too small.")


def largest_weight(data: Dataset, ratios: F64, stated: float | None) -> tuple[float, str]:
    """What pi(a|s) / mu(a|s) is at most, infinite if that is not known, and why.

    Stated; or, of discrete actions, one over the smallest probability of an action, where every action was
    always logged with the same one and these add up to 1: then all of the logging policy is known.
    """
    seen = float(ratios.max())
    if stated is not None:
        given: Any = stated
        if not (isinstance(given, Real) and math.isfinite(given) and float(given) >= 1):
            raise InputError(
                f"the largest weight is {given}; it must be finite and at least 1, as weights are on average."
            )
        if seen > stated * (1 + 1e-6):
            raise InputError(f"a step of the data weighs {seen:g}, more than the stated largest {stated:g}.")
        return stated, "as stated"
    if data.discrete:
        mu = propensities_of(data)
        least, most = np.full(data.num_actions, np.inf), np.zeros(data.num_actions)
        np.minimum.at(least, data.actions, mu)
        np.maximum.at(most, data.actions, mu)
        if (most - least <= 1e-6 * most).all() and abs(most.sum() - 1.0) < 1e-3:
            return 1.0 / float(least.min()), "every action was always logged with the same probability"
    return math.inf, ""
