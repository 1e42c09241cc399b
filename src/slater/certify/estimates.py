"""Tier 3: verdicts from the log alone, without propensities and without running the policy.

What the log says of a policy is what training asks too: the log model, fitted once and kept in the user's
cache, and the posterior of J on it (`slater.deep.ope.posterior`), a mean and a standard deviation of every
cost. A run and its certificate say one number. How many deviations away a bound must be was measured on
tasks of known truth (`slater.certify.conformal`), where the log that trained a policy judged it, as here. So
such a verdict is an estimate with a measured rate of error, never a guarantee.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from slater.certify import conformal
from slater.certify.bounds import Interval
from slater.certify.conformal import CLASSES, Calibration, calibration_gate
from slater.certify.ranges import Known, Ranges, Stated
from slater.certify.verdict import Certificate, Evidence, Gate, LimitVerdict, episode_limit, error_of_each
from slater.data import Dataset
from slater.deep.log_model import log_model as logs
from slater.deep.log_model.columns import NAMES
from slater.deep.log_model.log_model import LogModel, LogModelSettings
from slater.deep.nets.imported import network_of
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope import posterior, rollouts
from slater.deep.task import in_j_units, state_task
from slater.errors import InputError
from slater.limits import Limit, Limits, resolve_limits
from slater.policy import parts_of

F64 = NDArray[np.float64]
#: fewest complete episodes that a log may have; the bank's have 100 and more
FEWEST_EPISODES = 50
#: the gate that a fit would open, and what it says
NOT_FITTED, CERTIFY_IT = "log model", "the log was not fitted; certify the run to fit it."
#: of the interval that is drawn beside the verdict's: what a run says of itself
CONFIDENCE = 0.95
UNKNOWN = "nothing says how the policy was made: it is judged like those that were searched for."


def made_with() -> dict[str, Any]:
    """Everything that decides what a log says of the default's policies, as JSON: a bank is of one such."""
    from slater.deep.algorithms.pdca.config import PDCAConfig

    record = {
        "log_model": [logs.VERSION, dataclasses.asdict(logs.settings_of())],
        "posterior": [posterior.COST_PRIOR, posterior.REWARD_PRIOR, posterior.SCALES, posterior.SHARES,
                      posterior.SCALE_SPREAD, posterior.SPREAD_EPISODES, posterior.UNSEEN, posterior.FARTHEST,
                      posterior.TAILS],
        "rollouts": [rollouts.STEPS, rollouts.LEAST, rollouts.MOST],
        "default": dataclasses.asdict(PDCAConfig()),
    }  # fmt: skip
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return plain


class Said(NamedTuple):
    """What a log says of P policies per episode, in the data's units: reward first, then costs.

    mean: (P, 1+I), by the worse word where there are two; better: (P, 1+I), by the other
    covariance: (1+I, P, P) of the means; past: costs, and "the next observation", that an episode's past says
    more of than a state does
    """

    mean: F64
    better: F64
    covariance: F64
    past: tuple[str, ...]

    @property
    def deviation(self) -> F64:
        """Standard deviations, (P, 1+I)."""
        return np.sqrt(np.maximum(np.einsum("upp->pu", self.covariance), 0.0))


def asked(
    data: Dataset, policies: Sequence[Any], limits: Sequence[float], gamma: float,
    settings: LogModelSettings | None = None, cache: Path | None = None, kinds: Sequence[str] = (),
) -> Said:  # fmt: skip
    """The log model of `data`, fitted or from `cache`, asked about policies and mixtures in NumPy.

    limits: per episode, in the order of the data's costs; kinds: class of each policy, "" if not known. What
    was searched for may have been so in the model of either half of the log, and is lucky there: each half is
    asked, and the worse word counts. A log's own candidates are known again by their weights.
    """
    stated = [Limit.episode(float(x), cost) for x, cost in zip(limits, data.cost_names, strict=True)]
    task = state_task(data, tuple(stated), gamma)
    parts = [parts_of(policy) for policy in policies]
    # what cannot act on these data is refused before anything is fitted
    networks = [[network_of(member, task) for _, member in own] for own in parts]
    log = logs.fit_log_model(data, task, settings or logs.settings_of(data), cache)
    size = in_j_units(task)[:-1] / task.scale
    every: list[PolicyNetwork] = []
    halves: list[int | None] = []
    places: list[list[tuple[int, int]]] = []
    for own, kind in zip(networks, kinds or [""] * len(policies), strict=True):
        places.append([])
        for network in own:
            begin = len(log.kinds) + len(every)
            asked_of = [None] if kind in ("clone", "in-sample") or _of_log(network, log) else [0, 1]
            every += [network] * len(asked_of)
            halves += asked_of
            places[-1].append((begin, begin + len(asked_of) - 1))
    found = posterior.posterior_of(log, every, halves)
    sign = np.append(-1.0, np.ones(task.costs))  # a small reward is worse, and a large cost
    means, covariance = np.zeros((2, len(policies), 1 + task.costs)), []
    for u in range(1 + task.costs):
        weights = np.zeros((2, len(policies), len(found.mean)))
        for row, (shares, own_places) in enumerate(zip(parts, places, strict=True)):
            for (share, _), pair in zip(shares, own_places, strict=True):
                by = sorted(pair, key=lambda k: -sign[u] * found.mean[k, u])
                for which in (0, 1):
                    weights[which, row, by[which]] += share
        means[:, :, u] = weights @ found.mean[:, u]
        covariance.append(weights[0] @ found.covariance[u] @ weights[0].T * size[u] ** 2)
    return Said(means[0] * size, means[1] * size, np.stack(covariance), log.past)


def _of_log(network: PolicyNetwork, log: LogModel) -> bool:
    """Whether a policy is one of the log's own candidates."""
    own, known = jax.tree.leaves(network), jax.tree.leaves(log.candidates)
    if [a.shape for a in own] != [b.shape[1:] for b in known]:
        return False
    pairs = zip(own, known, strict=True)
    same = [np.all(np.asarray(a) == np.asarray(b), axis=tuple(range(1, b.ndim))) for a, b in pairs]
    return bool(np.any(np.all(same, axis=0)))


def certify_candidates(
    data: Dataset,
    policies: Mapping[str, Any],
    *,
    limits: Limits,
    kinds: Mapping[str, str] | None = None,
    confidence: float = 0.95,
    candidates: int | None = None,
    gamma: float | None = None,
    share: float = 1.0,
    largest_step_cost: Stated = None,
    largest_episode_cost: Stated = None,
    known: Known = None,
    settings: LogModelSettings | None = None,
    cache: Path | None = None,
    calibration: Calibration | None = None,
    fit: bool = True,
) -> list[Certificate]:
    """Certificates of policies without memory, or mixtures of such, by name, with one fit for all.

    kinds: the class of each (`slater.certify.conformal.CLASSES`), searched for unless known. candidates: how
    many share the error, by default all of `policies`. calibration: by default the one that comes with the
    package, if it was made with these settings. cache: folder of log models, or None to keep nothing. fit:
    whether to fit the log; if not, the certificates say what keeps this tier from a verdict, without
    estimates. Ranges as in `slater.certify.rollouts`: no upper bound is above the most that an episode can
    cost.
    """
    candidates = candidates or len(policies)
    resolved = resolve_limits(limits, data.cost_names)
    table = data.episodes
    if int(table.lengths.max()) > data.horizon:
        raise InputError(
            f"an episode has {int(table.lengths.max())} steps, more than the horizon of {data.horizon}; "
            "the limits are about other episodes."
        )
    per_episode = np.array([episode_limit(limit, gamma, data.horizon) for limit in resolved])
    ranges = Ranges.of(data.cost_names, largest_step_cost, largest_episode_cost, known=known)
    ranges.check_steps(data.costs, table.starts)
    ranges.check_episodes(table.costs)
    rates = np.array([limit.value if limit.unit == "step" else 0.0 for limit in resolved])
    most = ranges.largest(data.horizon, rates)
    # an episode that was cut off before the horizon says nothing of the sum that the limit is about
    complete = int((table.timed_out | (table.complete & table.terminated)).sum())
    if calibration is None and settings is None:
        calibration = conformal.shipped_calibration(made_with())
    gates = [
        Gate("episodes", complete >= FEWEST_EPISODES,
             f"{complete} complete episodes; {FEWEST_EPISODES} are needed."),
        Gate("states", points := logs.levels_for(data) != NAMES,
             "observations are points of a space." if points else
             "observations are one-hot, and such bounds were tried on no task like that: see "
             "slater.certify.exact for finite problems."),
    ]  # fmt: skip
    ready = all(gate.passed for gate in gates)
    if ready and not fit:
        gates.append(Gate(NOT_FITTED, False, CERTIFY_IT))
    said, classes = None, [(kinds or {}).get(name, "") for name in policies]
    if ready and fit:
        said = asked(
            data, list(policies.values()), per_episode.tolist(), gamma or 0.99, settings, cache, classes
        )
        more = "no more than the observation."
        if said.past:
            more = f"more of {' and of '.join(said.past)} than the observation does, so that no estimate can "
            more += "be right: add to the observations what they hide."
        gates.append(Gate("nothing hidden", not said.past, f"what came before in an episode says {more}"))
    found = []
    for number, (name, kind) in enumerate(zip(policies, classes, strict=True)):
        class_ = kind or "played"
        error = error_of_each(confidence, 1, 1, share)
        if calibration is not None:
            error *= calibration.share(class_, candidates)
        # first what no fit would open
        own = [*gates[:2], calibration_gate(calibration, class_, error), *gates[2:]]
        found.append(
            Certificate(
                name, confidence,
                _verdicts(data.cost_names, said, number, per_episode, most, calibration, class_, error, own),
                candidates, f"{complete} logged episodes" + (", by a model fitted to them." if said else "."),
                _assumed(calibration, class_, candidates) + (() if kind else (UNKNOWN,)),
                {"largest": most.tolist(), "class": class_},
            )
        )  # fmt: skip
    return found


def _assumed(calibration: Calibration | None, kind: str, candidates: int) -> tuple[str, ...]:
    if calibration is None:
        return ("this is an estimate, not a guarantee.",)
    together = calibration.together.get(kind, 1)
    lines = [
        f"this is an estimate, not a guarantee: the task is taken to be like the {calibration.tasks(kind)} "
        f"tasks of known truth on which {CLASSES[kind]} were tried ({calibration.said})."
    ]
    if candidates > together:
        lines.append(f"{candidates} candidates share the error; up to {together} of this kind need not.")
    return tuple(lines)


def _verdicts(
    names: Sequence[str], said: Said | None, number: int, limits: F64, most: F64,
    calibration: Calibration | None, kind: str, error: float, gates: Sequence[Gate],
) -> tuple[LimitVerdict, ...]:  # fmt: skip
    """Of policy `number`; without estimates or factors there are no bounds."""
    verdicts = []
    up, down, condition = float("nan"), float("nan"), ""
    if calibration is not None and np.isfinite(calibration.factors(kind, error)).all():
        up, down = calibration.factors(kind, error)
        condition = f"this task is like the {calibration.tasks(kind)} on which such estimates were tried"
    for i, (name, limit) in enumerate(zip(names, limits.tolist(), strict=True)):
        interval = Interval(float("nan"), float("nan"), float("nan"))
        evidence: tuple[Evidence, ...] = ()
        if said is not None:
            mean, deviation = float(said.mean[number, 1 + i]), float(said.deviation[number, 1 + i])
            width, better = float(conformal.floored(deviation, limit)), float(said.better[number, 1 + i])
            low, high = np.maximum(better - down * width, 0.0), np.minimum(mean + up * width, most[i])
            interval = Interval(mean, float(low), float(high))
            wide = posterior.deviations_at(CONFIDENCE) * deviation
            evidence = (Evidence("what a run says", mean, max(mean - wide, 0.0), mean + wide),)
        verdicts.append(
            LimitVerdict.of(name, limit, interval, "estimates", gates, evidence, condition=condition)
        )
    return tuple(verdicts)
