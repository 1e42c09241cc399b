"""Runs as candidates: the policies that they kept, with the estimates that they made of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from slater.certify.frontier import Candidate, Frontier, Point, Pool, mix
from slater.certify.subjects import Subject, find_policy
from slater.certify.verdict import episode_limit
from slater.data import Dataset
from slater.disk import make_folder, write_json
from slater.errors import InputError, InputWarning
from slater.limit_status import LimitStatus
from slater.limits import Limits, limit_list, resolve_limits
from slater.policy import Contract, Mixture, parts_of, save
from slater.runs import SavedRun, is_run, open_run
from slater.runs.log import judged_sums
from slater.runs.trained_on import TrainedOn


def pool_of_run(saved: SavedRun, label: str = "") -> Pool:
    """The members of a finished run that have estimates, as sums per episode; `label` goes before names."""
    task = saved.task
    candidates = []
    for member in saved.result.members:
        if member.estimates is None:
            continue
        sums = task.per_episode(member.estimates)
        spread = task.per_episode(member.spread or dict.fromkeys(member.estimates, 0.0))
        reward = next(key for key in sums if key not in task.costs)
        costs, spreads = (tuple(each[name] for name in task.costs) for each in (sums, spread))
        candidates.append(Candidate(f"{label}{member.name}", sums[reward], costs, spread[reward], spreads))
    if not candidates:
        raise InputError(
            f"{saved.folder} kept no policy with an estimate ({saved.run.algorithm} makes none), so there is "
            "nothing to mix by."
        )
    return Pool(tuple(task.costs), tuple(candidates), saved.result.trusted)


def pool_of_runs(runs: Sequence[SavedRun]) -> list[Pool]:
    """The pool of every run, names told apart where there are several; runs that do not fit are refused.

    Estimates that failed their check, and those of runs of other data, are said in an `InputWarning`.
    """
    first = runs[0]
    for saved in runs:
        if [one.folder.resolve() for one in runs].count(saved.folder.resolve()) > 1:
            raise InputError(f"the run {saved.folder} is given twice; give each run once.")
        for name in ("obs_dim", "action_dim", "discrete", "horizon"):
            own, other = getattr(saved.task, name), getattr(first.task, name)
            if own != other:
                said = f"{saved.folder} has {name} {own} and {first.folder} has {other}"
                raise InputError(f"{said}; pool runs of one task.")
        if not saved.result.trusted:
            text = (
                f"the estimates of {saved.folder} failed their check on the data; what follows rests on them"
            )
            warnings.warn(text, InputWarning, stacklevel=3)
    if len({saved.run.fingerprint for saved in runs}) > 1:
        text = "these runs are of different data; their estimates are comparable only if the data are alike"
        warnings.warn(text, InputWarning, stacklevel=3)
    return [pool_of_run(saved, f"{saved.folder}: " if len(runs) > 1 else "") for saved in runs]


def episode_limits(saved: SavedRun, limits: Limits = ()) -> list[float]:
    """Limits per episode in the order of the run's costs; its own where none are given."""
    chosen = resolve_limits(limit_list(limits) or saved.run.limits, saved.task.costs)
    return [float(saved.task.units.episode(limit)) for limit in chosen]


def with_log(frontier: Frontier, data: Dataset) -> Frontier:
    """The frontier with the episodes of the log and, where it names them, the means of its sources.

    An episode that was cut off counts by its rate, or not at all, as everywhere (`Episodes.judged`).
    """
    rows = np.column_stack(judged_sums(data, frontier.cost_names))
    sources = {}
    if data.source is not None:
        labels = data.source[data.episodes.judged].astype(str)
        sources = {str(x): tuple(rows[labels == x].mean(axis=0).tolist()) for x in np.unique(labels)}
    return replace(frontier, episodes=tuple(map(tuple, rows.tolist())), sources=sources)


def pool_of_policies(
    policies: Mapping[str, Any], data: Dataset, limits: Sequence[float], gamma: float, *,
    cache: Path | None = None, settings: Any = None,
) -> Pool:  # fmt: skip
    """Any policies without memory as candidates, by what `data` say of them together (limits per episode).

    settings: a `slater.deep.log_model.log_model.LogModelSettings`, by default those of a run.
    """
    from slater.certify.estimates import asked

    said = asked(data, list(policies.values()), limits, gamma, settings, cache)
    candidates = tuple(
        Candidate(name, mean[0], tuple(mean[1:]), spread[0], tuple(spread[1:]))
        for name, mean, spread in zip(policies, said.mean.tolist(), said.deviation.tolist(), strict=True)
    )
    return Pool(tuple(data.cost_names), candidates, not said.past, said.covariance)


def mix_policies(
    places: Sequence[str | Path],
    limits: Limits,
    out: str | Path,
    *,
    data: str | Path,
    margin: float = 0.1,
    gamma: float = 0.99,
    cache: Path | None = None,
    settings: Any = None,
) -> Point:
    """The best mixture of policy files and of what runs act by, judged by one log, written to `out`.

    Every policy is judged anew from `data`, so that files, runs and algorithms without estimates compare.
    gamma: discount of the estimators where no policy says its own.
    """
    _refuse_run(out)
    subjects = [find_policy(place) for place in places]
    origins = [subject.origin for subject in subjects]
    log = next((origin for origin in origins if origin.reading), origins[0]).read(data)
    if not limit_list(limits):
        raise InputError("give the limits that the mixture must keep.")
    within = episode_thresholds(subjects, limits, log)
    gamma = next((origin.gamma for origin in origins if origin.gamma is not None), gamma)
    parts: dict[str, Any] = {}
    for place, subject in zip(places, subjects, strict=True):
        found = parts_of(subject.policy)
        for number, (_, policy) in enumerate(found):
            name = str(place) if len(found) == 1 else f"{place}: member {number + 1}"
            if name in parts:
                raise InputError(f"{place} is given twice; give each policy once.")
            if not hasattr(policy, "tensors"):
                raise InputError(
                    f"{name} cannot be written into a mixture; give runs and .safetensors files."
                )
            parts[name] = policy
    pool = pool_of_policies(parts, log, within, gamma, cache=cache, settings=settings)
    point = mix(pool, within, margin=margin)
    mixture = Mixture(tuple(parts[name] for name in point.weights), np.array(list(point.weights.values())))
    return _written(out, mixture, subjects, limits, point, log, places, margin)


def episode_thresholds(policies: Sequence[Any], limits: Limits, log: Dataset) -> list[float]:
    """Limits per episode in the order of the log's costs, by the one task that policies were trained on."""
    origins = [find_policy(policy).origin for policy in policies]
    for name in ("gamma", "horizon"):
        found = {getattr(origin, name) for origin in origins} - {None}
        if len(found) > 1:
            said = " and ".join(f"{x:g}" for x in sorted(found))
            raise InputError(f"the policies were trained with {name} {said}; mix policies of one task.")
    gamma = next((origin.gamma for origin in origins if origin.gamma is not None), None)
    horizon = next((origin.horizon for origin in origins if origin.horizon is not None), log.horizon)
    return [episode_limit(limit, gamma, horizon) for limit in resolve_limits(limits, log.cost_names)]


def mixed_contract(
    subjects: Sequence[Subject], limits: Limits, point: Point, judge: Dataset | None
) -> Contract | None:
    """What the file of a mixture says: all that trained a member, or chose among them, trained it.

    judge: the log by whose estimates the policies were chosen, if it is none of those that trained them.
    None where a member's file says too little.
    """
    contracts = [getattr(subject.policy, "contract", None) for subject in subjects]
    first, origins = contracts[0], [subject.origin for subject in subjects]
    trained = [origin.trained_on for origin in origins if origin.trained_on is not None]
    if not isinstance(first, Contract) or len(trained) < len(subjects):
        return None
    if judge is not None:
        trained.append(TrainedOn.of(judge))
    one_hold_out = judge is None and all(origin.held_out == origins[0].held_out for origin in origins)
    known = all(set(first.costs) <= set(origin.largest_step_cost) for origin in origins)
    return replace(
        first, algorithm="mix", limits=tuple(map(str, limit_list(limits))) or first.limits,
        limit_status={cost: str(LimitStatus.NOT_KNOWN) for cost in first.costs},
        judged=("it was chosen by estimates; certify it before it is deployed",),
        members=tuple((weight, name) for name, weight in point.weights.items()),
        largest_step_cost=tuple(max(o.largest_step_cost[cost] for o in origins) for cost in first.costs)
        if known else (),
        imitates=all(one.imitates for one in contracts if isinstance(one, Contract)),
        trained_on=TrainedOn.join(trained).text(), held_out=first.held_out if one_hold_out else None,
    )  # fmt: skip


def _written(
    out: str | Path, mixture: Mixture, subjects: Sequence[Subject], limits: Limits, point: Point,
    judge: Dataset | None, places: Sequence[str | Path], margin: float,
) -> Point:  # fmt: skip
    folder = make_folder(out)
    contract = mixed_contract(subjects, limits, point, judge)
    save(replace(mixture, contract=contract), folder / "mixture.safetensors")
    record = {"runs": [str(place) for place in places], "margin": margin, "unit": "per episode"}
    write_json(folder / "mix.json", record | point.as_dict())
    return point


def mix_runs(folders: Sequence[str | Path], limits: Limits, out: str | Path, *, margin: float = 0.1) -> Point:
    """Pool the policies of several runs, choose the best mixture within `limits`, and write it to `out`.

    Writes `mixture.safetensors` and `mix.json` (limits, estimates, prices, and the share of every policy).
    margin: share of every limit held back, because a program that picks among many estimates picks those
    that err in its favour.
    """
    _refuse_run(out)
    mixture, point = best_of_runs([open_run(folder) for folder in folders], limits, margin=margin)
    subjects = [find_policy(folder) for folder in folders]
    return _written(out, mixture, subjects, limits, point, None, folders, margin)


def best_of_runs(runs: Sequence[SavedRun], limits: Limits, *, margin: float = 0.1) -> tuple[Mixture, Point]:
    """The best mixture of what the runs kept within `limits`, ready to act, and what is estimated of it."""
    pools = pool_of_runs(runs)
    point = mix(Pool.union(pools), episode_limits(runs[0], limits), margin=margin)
    members: list[Any] = []
    weights: list[float] = []
    for saved, pool in zip(runs, pools, strict=True):
        estimated = [member for member in saved.result.members if member.estimates is not None]
        for candidate, member in zip(pool.candidates, estimated, strict=True):
            if candidate.name in point.weights:
                members.append(saved.kept_policy(member))
                weights.append(point.weights[candidate.name])
    shares = np.array(weights)
    return Mixture(tuple(members), shares / shares.sum()), point


def _refuse_run(out: str | Path) -> None:
    """A mixture is not written over that of a run, whose estimates would be of another policy."""
    if is_run(out):
        raise InputError(f"{out} holds a run with a policy and estimates of its own; choose another folder.")
