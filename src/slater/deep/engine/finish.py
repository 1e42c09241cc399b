"""The end of a run: weights over its members, the policies on disk, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Member
from slater.deep.engine.contract import exported, make_contract
from slater.deep.engine.folder import RunFolder
from slater.deep.engine.judging import judge_members
from slater.deep.task import Task
from slater.mixing import best_mixture
from slater.policy import Mixture
from slater.policy import save as save_policy
from slater.runs import LimitRecord, LimitStatus, Result, Run
from slater.runs import Member as SavedMember
from slater.runs.folder import save_kept
from slater.runs.result import write_result


def finish(
    run: Run, algorithm: Algorithm[Any, Any], task: Task, data: Any, state: Any, folder: RunFolder,
    key: Array, tick: Callable[[str, int, int], None], dataset: Dataset | StoredDataset,
) -> Result:  # fmt: skip
    """Choose the mixture, write policies and `result.json`, and return the result."""
    last, steps = algorithm.policy(state), algorithm.config.steps
    if not folder.members:  # a run shorter than the interval: its last policy is all there is
        folder.keep(last, Member(steps, algorithm.estimates(task, state)))
        folder.save(state, steps)
    check = algorithm.check_estimates(task, state, dataset)
    if check.candidates:
        folder.keep_candidates(check.candidates, state, steps)
    policies = folder.policies(last)
    weights, members = algorithm.weigh(task, state, data, folder.members, policies, key, tick, check)
    # an estimate that is not finite is none
    none: dict[str, Any] = {"estimates": None, "spread": None}
    members = [m if np.isfinite(m.estimates or 0.0).all() else replace(m, **none) for m in members]
    chosen = [k for k in range(len(members)) if weights[k] > 0]
    mixture = Mixture(tuple(exported(policies[k], task, dataset) for k in chosen), weights[chosen])
    details = {**algorithm.report(task, state, members, weights), **check.report}
    warnings, trusted = list(check.warnings), check.trusted
    judged_status: Sequence[LimitStatus] | None = None
    if run.estimate and any(members[k].estimates is None for k in chosen):
        found = judge_members(algorithm, task, members, weights, policies, dataset, tick)
        members, judged_status = found.members, found.status
        details |= {"estimate": found.about}
        trusted = trusted and bool(found.about.get("trusted", True))
        warnings += found.warnings
    estimates, per_episode = _estimates(task, members, weights)
    limits = tuple(LimitRecord(**record) for record in task.describe()["limits"])
    status = algorithm.limit_status(task, members, weights, check) or judged_status
    sums, whole = (estimates, False) if per_episode is None else (per_episode, True)
    most = {x.cost: x.episode if whole else x.discounted for x in limits}
    if status is None:
        status = [
            LimitStatus.by_estimate(None if sums is None else sums[cost], limit, trusted=trusted)
            for cost, limit in most.items()
        ]
    if "reference" not in details and (best := log_best(dataset, limits)) is not None:
        details |= {"reference": best}
    result = Result(
        algorithm=run.algorithm,
        seed=run.seed,
        steps=steps,
        limits=limits,
        members=tuple(_recorded(task, m, w) for m, w in zip(members, weights, strict=True)),
        limit_status=dict(zip(task.cost_names, status, strict=True)),
        trusted=trusted,
        estimates=estimates,
        per_episode=per_episode,
        warnings=(*warnings, *_excesses(most, status, sums, whole)),
        details=details,
        folder=folder.path,
    )
    contract = make_contract(run, task, dataset, result)
    save_policy(mixture, folder.path / "mixture.safetensors", contract)
    alone = replace(
        contract, members=(), judged=("nothing is said about this policy alone",),
        limit_status=dict.fromkeys(task.cost_names, str(LimitStatus.NOT_KNOWN)),
    )  # fmt: skip
    save_policy(exported(last, task, dataset), folder.path / "policy.safetensors", alone)
    for member, policy in zip(members, policies, strict=True):
        own = exported(policy, task, dataset)
        save_kept(folder.path, member.step, own, replace(alone, steps=member.step))
    write_result(folder.path, result)
    return result


def log_best(dataset: Dataset | StoredDataset, limits: tuple[LimitRecord, ...]) -> dict[str, Any] | None:
    """The best mixture of the sources that a log names, by their means per episode; None if it names none."""
    most = [limit.episode for limit in limits]
    if not isinstance(dataset, Dataset) or dataset.source is None or None in most:
        return None
    table = dataset.episodes
    order = [dataset.cost_names.index(limit.cost) for limit in limits]
    sums = np.column_stack([table.returns_per_episode, table.costs_per_episode[:, order]])
    names = np.unique(dataset.source[table.judged])
    if len(names) < 2:
        return None
    means = np.stack([sums[table.judged & (dataset.source == name)].mean(axis=0) for name in names])
    bounds = np.array(most, dtype=np.float64)
    best = best_mixture(means[:, 0], means[:, 1:], bounds, unit=np.maximum(bounds, 1e-9), slack=1e-9)
    value = best.weights @ means
    costs = {limit.cost: float(x) for limit, x in zip(limits, value[1:], strict=True)}
    return {"within_limits": best.excess <= 1e-9, "reward": float(value[0]), **costs}


def _recorded(task: Task, member: Member, weight: float) -> SavedMember:
    """A member as the result says it, with estimates in raw units."""
    names = ("reward", *task.cost_names)

    def named(values: tuple[float, ...] | None) -> dict[str, float] | None:
        return (
            None
            if values is None
            else dict(zip(names, task.unscaled(np.array(values)).tolist(), strict=True))
        )

    known, spread = named(member.estimates), named(member.spread)
    return SavedMember(member.step, member.kind, float(weight), known, member.careful, spread)


def _estimates(
    task: Task, members: Sequence[Member], weights: NDArray[np.float64]
) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """Discounted sums of the mixture in raw units, and as sums over an episode where a horizon is known."""
    # a member without weight need not be estimated
    unknown = (0.0,) * (1 + task.costs)
    known = [m.estimates or (unknown if w == 0 else None) for m, w in zip(members, weights, strict=True)]
    if any(estimates is None for estimates in known):
        return None, None
    values = task.unscaled(weights @ np.array(known))
    sums = dict(zip(("reward", *task.cost_names), values.tolist(), strict=True))
    if task.units.horizon is None:
        return sums, None
    return sums, {name: task.units.rescale(value, "discounted", "episode") for name, value in sums.items()}


def _excesses(
    limits: Mapping[str, float | None], status: Sequence[LimitStatus], sums: Mapping[str, float] | None,
    whole: bool,
) -> list[str]:  # fmt: skip
    """A sentence per cost above its limit by the mixture's own estimate; whole: sums are of an episode."""
    unit = "per episode" if whole else "as a discounted sum"
    return [
        f"by its own estimate the mixture does not keep the limit on {cost}: {sums[cost]:.3g} {unit}, limit "
        f"{most:.3g}. Raise the limit, train longer, or add data that keep it."
        for (cost, most), known in zip(limits.items(), status, strict=True)
        if sums is not None and known is LimitStatus.ABOVE and most is not None
    ]
