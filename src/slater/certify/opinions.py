"""Certificates by estimates from the log alone: one fit for all candidates, every gate, the calibration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slater.certify.acting import acting, parts_of
from slater.certify.calibration import Calibration, calibration_gate, read_calibration, shipped_record
from slater.certify.estimates import FEWEST_EPISODES, LARGEST_SHARE_OUTSIDE, Opinion, judge_estimates
from slater.certify.estimators import CERTIFYING, estimators_of, same_settings
from slater.certify.ranges import Ranges, Stated
from slater.certify.verdict import Certificate, Gate, episode_limit, error_of_each
from slater.data import Dataset
from slater.deep.ope.closed_loop import ClosedLoop
from slater.deep.ope.study import StudySettings
from slater.deep.task import state_task
from slater.errors import InputError
from slater.limits import Limit, Limits, resolve_limits

__all__ = ["NOT_FITTED", "certify_candidates", "certify_estimates"]


#: the gate that a fit would open, and what it says
NOT_FITTED, CERTIFY_IT = "estimators", "no estimators were fitted; certify the run to fit them."
#: by whether a policy imitates
HOW_MADE = {
    True: "the policy was made by a likelihood of logged actions: it is calibrated by such policies.",
    False: "nothing says that the policy was made by imitation: it is calibrated by those that were not.",
}


def _calibration_for(settings: StudySettings, confidence: float, *, imitates: bool) -> Calibration | None:
    """The package's calibration, if it was measured with estimators of these settings."""
    record = shipped_record()
    if record is None or not same_settings(record["settings"], settings):
        return None
    return read_calibration(record, confidence, imitates=imitates)


def gates_of(check: ClosedLoop, cohorts: int, outside: float) -> list[Gate]:
    """The conditions that an estimate from the log alone is under, besides agreement and calibration."""
    return [
        Gate(
            "closed-loop check", check.passes,
            f"over {cohorts} parts of the log the model's error is {check.score:.0%}"
            + ("." if check.passes else ", and at least one part is beyond what is allowed."),
        ),
        Gate(
            "distance from the data", outside <= LARGEST_SHARE_OUTSIDE,
            f"{outside:.0%} of what the policy does in the states that it visits in the model has nothing "
            f"alike in the log; at most {LARGEST_SHARE_OUTSIDE:.0%} may.",
        ),
    ]  # fmt: skip


def certify_estimates(
    data: Dataset,
    policy: Any,
    *,
    limits: Limits,
    confidence: float = 0.95,
    candidates: int = 1,
    name: str = "policy",
    imitates: bool = False,
    **options: Any,
) -> Certificate:
    """The certificate of a policy without memory (or a mixture of such); options of `certify_candidates`."""
    found = certify_candidates(
        data, {name: policy}, limits=limits, confidence=confidence, candidates=candidates,
        imitates=[name] if imitates else (), **options,
    )  # fmt: skip
    return found[0]


def certify_candidates(
    data: Dataset,
    policies: dict[str, Any],
    *,
    limits: Limits,
    confidence: float = 0.95,
    candidates: int | None = None,
    gamma: float | None = None,
    share: float = 1.0,
    largest_step_cost: Stated = None,
    largest_episode_cost: Stated = None,
    known: Mapping[str, tuple[float, str]] | None = None,
    settings: StudySettings | None = None,
    cache: Path | None = None,
    calibration: Calibration | None = None,
    imitates: Collection[str] = (),
    fit: bool = True,
) -> list[Certificate]:
    """Certificates of policies by name, from episodes that trained none of them, with one fit for all.

    candidates: how many share the error, by default all of `policies`. cache: folder of studies
    (`slater.deep.ope.study.cache_folder`), or None to fit anew and keep nothing. calibration: by default the
    one that comes with the package: for names in `imitates` of policies that imitate, else of others
    (`slater.certify.calibration`). fit: whether to fit estimators; if not, the certificates say what keeps
    this tier from a verdict, without estimates. Ranges as in `slater.certify.rollouts`: no upper bound is
    above the most that an episode can cost.
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
    gamma = 0.99 if gamma is None else gamma
    error = error_of_each(confidence, len(per_episode), candidates, share)
    ranges = Ranges.of(data.cost_names, largest_step_cost, largest_episode_cost, known=known)
    ranges.check_steps(data.costs, table.starts)
    ranges.check_episodes(table.costs)
    rates = np.array([limit.value if limit.unit == "step" else 0.0 for limit in resolved])
    most = ranges.largest(data.horizon, rates)
    # an episode that was cut off before the horizon says nothing of the sum that the limit is about
    complete = int((table.timed_out | (table.complete & table.terminated)).sum())
    stated = [
        Limit.episode(float(value), cost) for value, cost in zip(per_episode, data.cost_names, strict=True)
    ]
    own = {
        name: calibration or _calibration_for(settings or CERTIFYING, 1.0 - error, imitates=name in imitates)
        for name in policies
    }
    enough = complete >= FEWEST_EPISODES
    if not enough or not fit:
        few = f"{complete} complete episodes are too few for estimators; {FEWEST_EPISODES} are needed."
        closed = Gate("episodes", False, few)
        unknown = tuple(float("nan") for _ in per_episode)
        opinions = [Opinion(x, unknown, unknown) for x in ("model ensemble", "fitted Q")]
        found = []
        for name in policies:
            if enough:  # then what keeps it from a verdict is its calibration, or that nothing is fitted
                gate = calibration_gate(own[name], error)
                closed = gate if not gate.passed else Gate(NOT_FITTED, False, CERTIFY_IT)
            verdicts = judge_estimates(opinions, data.cost_names, per_episode.tolist(), error, gates=[closed])
            evidence = f"{complete} logged episodes."
            found.append(Certificate(name, confidence, verdicts, candidates, evidence))
        return found
    task = state_task(data, tuple(stated), gamma)
    for policy in policies.values():  # what cannot act on these data is refused before anything is fitted
        for _, member in parts_of(policy):
            acting(member, task, np.random.default_rng(0))(data.initial_observations[:2])
    estimators = estimators_of(data, stated, gamma, settings, cache)
    check = estimators.check()
    standings = estimators.standings(check, per_episode.tolist())
    described = check.describe(estimators.task, estimators.study.cohorts)
    rows = [
        {"cohort": row["cohort"], **{f"{kind} {key}": value for kind in ("logged", "estimated")
                                     for key, value in row[kind].items()}}
        for row in described["cohorts"]
    ]  # fmt: skip
    assumed = (
        "this is an estimate, not a guarantee; its rate of error is that of its calibration.",
        *(
            f"for {cost} the model ensemble counts {one.weights[0]:.0%}, fitted Q {one.weights[1]:.0%}, by "
            f"what they got wrong about parts of the log; together that is {one.error:.0%}."
            for cost, one in zip(data.cost_names, standings, strict=True)
        ),
    )
    found = []
    for name, said in zip(policies, estimators.judged(list(policies.values())), strict=True):
        gates = [
            Gate("episodes", True, f"{complete} complete episodes."),
            *gates_of(check, len(estimators.study.cohorts), said.outside),
        ]
        verdicts = judge_estimates(
            said.opinions, data.cost_names, per_episode.tolist(), error, gates=gates,
            standings=standings, calibration=own[name], most=most.tolist(),
        )  # fmt: skip
        found.append(
            Certificate(
                name, confidence, verdicts, candidates,
                f"{complete} logged episodes, by estimators fitted to them.",
                (*assumed, HOW_MADE[name in imitates]),
                {"coverage": said.plane, "cohorts": rows, "largest": most.tolist()},
            )
        )  # fmt: skip
    return found
