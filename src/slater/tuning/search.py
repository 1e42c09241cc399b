"""Settings chosen without the environment: candidates, their estimates on held-out episodes, the choice.

Every candidate is trained on one part of the episodes and judged on the other, which training never saw:
its mixture, member by member, by the log model of those episodes (`slater.deep.ope.posterior`). A cost counts
one standard deviation worse than its mean. Chosen is the best reward among candidates whose every cost is
within its limit, or the least excess where there is none. The choice is as good as the estimates are: they
share the data's gaps with training, and nothing here has seen the environment.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep import checkpoint
from slater.deep.algorithms.base import Algorithm
from slater.deep.algorithms.registry import find, make_algorithm
from slater.deep.engine.folder import algorithm_of
from slater.deep.log_model.log_model import fit_log_model, settings_of
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.posterior import posterior_of
from slater.deep.task import Task
from slater.errors import InputError
from slater.limits import Limit, Units
from slater.pairs import parse_values
from slater.runs import open_run, read_run
from slater.runs.held_out import SEED

F64 = NDArray[np.float64]


def parse_search(
    algorithm: str, texts: Sequence[str], preset: str | None = None
) -> dict[str, tuple[str, ...]]:
    """The space from texts `NAME=V1,V2,...`, or the algorithm's default one if there are none."""
    if not texts:
        if not (space := dict(find(algorithm, preset).search_space)):
            raise InputError(f"{algorithm} has no default space; name settings to search as NAME=V1,V2.")
        return space
    return parse_values(texts, "search", "hidden=64,128x128")


def candidates(
    algorithm: str,
    preset: str | None,
    fixed: Mapping[str, str],
    space: Mapping[str, tuple[str, ...]],
    samples: int | None,
    seed: int,
) -> list[dict[str, str]]:
    """Settings of every point of the grid, or of `samples` of its points, drawn without replacement.

    A name or value that the algorithm does not take is refused here, before any training.
    """
    points = [dict(zip(space, point, strict=True)) for point in itertools.product(*space.values())]
    if samples is not None and samples < len(points):
        drawn = np.random.default_rng(seed).choice(len(points), size=samples, replace=False)
        points = [points[index] for index in sorted(drawn)]
    for point in points:
        make_algorithm(algorithm, {**fixed, **point}, preset)
    return points


def split_episodes(dataset: Dataset, held_out: float, seed: int) -> tuple[Dataset, Dataset]:
    """Episodes to train on and episodes to judge by, the latter a share `held_out`, drawn from `seed`.

    Those that judge are of the half that `slater train --hold-out` would keep last: what chose settings does
    not certify what they learned.
    """
    if not 0 < held_out < 1:
        raise InputError(f"the held-out share is {held_out}; it must be between 0 and 1, for example 0.2.")
    if len(dataset.episodes) < 2:
        raise InputError("the data has one episode; at least two are needed to hold one out.")
    # both parts keep the horizon of the whole: limits per episode mean the same in both
    whole = replace(dataset, metadata=replace(dataset.metadata, horizon=dataset.horizon))
    count = len(whole.episodes)
    size = min(max(1, round(held_out * count)), count - 1)
    last = whole.episodes.split(0.5, SEED)[0]
    pool = last if size <= len(last) else np.arange(count)
    judging = np.sort(np.random.default_rng(seed).choice(pool, size=size, replace=False))
    return whole.subset(np.setdiff1d(np.arange(count), judging)), whole.subset(judging)


@dataclass(frozen=True)
class Judge:
    """Estimates of a finished run's mixture on held-out episodes.

    steps: iterations of the log model's fit at most; members: at most so many are estimated; of a mixture of
    more, evenly spaced ones stand for all.
    """

    steps: int = 8_000
    members: int = 5

    def __post_init__(self) -> None:
        for name in ("steps", "members"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} of the estimates is {getattr(self, name)}; at least 1 is needed.")

    def __call__(self, folder: Path, kept: Dataset, held: Dataset) -> dict[str, Any]:
        """Estimated discounted sums of the raw utilities, `tau`, and the relative `excess`, as JSON.

        folder: of a run that was trained on `kept`. excess: the largest (J_Ci - tau_i) / tau_i, in the
        estimate that counts; at most 0 if every limit is kept.
        """
        run = read_run(folder)
        algorithm = algorithm_of(run)
        # the problem as it was trained on, and the held-out rows in its units
        task = algorithm.task(kept, run.limits)
        weighted = _weighted_members(folder, algorithm, task, self.members)
        shares = np.array([weight for weight, _ in weighted])
        log = fit_log_model(held, task, settings_of(held, self.steps))
        found = posterior_of(log, [policy for _, policy in weighted])
        mean, deviation = found.mixed(np.append(np.zeros(len(log.kinds)), shares))
        J = mean + np.append(0.0, deviation[1:])
        tau = task.tau.astype(np.float64)
        raw, names = task.unscaled(J), task.cost_names
        return {
            "reward": float(raw[0]),
            "costs": dict(zip(names, raw[1:].tolist(), strict=True)),
            "tau": dict(zip(names, (tau / task.scale[1:]).tolist(), strict=True)),
            "excess": float(np.max((J[1:] - tau) / np.maximum(tau, 1e-9))),
            "members": len(weighted),
        }


#: how the unit of a limit is said
UNIT_WORDS = {"episode": "per episode", "discounted": "discounted", "step": "per step"}


def in_units_of_limits(
    estimate: Mapping[str, Any], limits: Sequence[Limit], units: Units
) -> dict[str, float]:
    """A judge's estimates as people asked for them: each cost in the unit of its limit, beside the limit.

    The reward is per episode where the steps of an episode are known, else a discounted sum. Keys say what
    and in which unit.
    """
    of_reward: Literal["episode", "discounted"] = "discounted" if units.horizon is None else "episode"
    line = {f"reward {UNIT_WORDS[of_reward]}": units.rescale(estimate["reward"], "discounted", of_reward)}
    for limit in limits:
        cost = estimate["costs"][limit.cost]
        line[f"{limit.cost} {UNIT_WORDS[limit.unit]}"] = units.rescale(cost, "discounted", limit.unit)
        line[f"limit of {limit.cost}"] = limit.value
    return line


def judged_policy(algorithm: Algorithm[Any, Any], task: Task) -> PolicyNetwork:
    """The algorithm's policy as shapes without values; refused if no estimate can judge it."""
    key = jax.random.key(0)
    shapes = eqx.filter_eval_shape(lambda key: algorithm.policy(algorithm.init(task, key)), key)
    if not isinstance(shapes, PolicyNetwork):
        raise InputError(
            f"an estimate from data cannot judge the policy of {algorithm.name}, which is more than a "
            "distribution of actions given a state; choose its settings in the environment."
        )
    return shapes


def refuse_unjudged(name: str, settings: Mapping[str, Any], preset: str | None, dataset: Dataset) -> None:
    """Refuse, before any training, data or an algorithm that a search cannot be done with."""
    algorithm = make_algorithm(name, settings, preset)
    algorithm.check(dataset)
    limits = [f"{cost}=1/discounted" for cost in dataset.cost_names]  # shapes do not depend on them
    judged_policy(algorithm, algorithm.task(dataset, limits))


def best(estimates: Sequence[Mapping[str, Any]]) -> int:
    """The index of the choice: best reward among those without excess, else the least excess."""
    safe = [k for k, row in enumerate(estimates) if row["excess"] <= 0]
    if safe:
        return max(safe, key=lambda k: float(estimates[k]["reward"]))
    return min(range(len(estimates)), key=lambda k: float(estimates[k]["excess"]))


def _weighted_members(
    folder: Path, algorithm: Algorithm[Any, Any], task: Task, most: int
) -> list[tuple[float, PolicyNetwork]]:
    """Weights and policies of the members with weight; at most `most`, weights summing to 1."""
    chosen = [member for member in open_run(folder).result.members if member.weight > 0]
    if len(chosen) > most:
        places = np.unique(np.linspace(0, len(chosen) - 1, most).round().astype(int))
        chosen = [chosen[place] for place in places]
    total = sum(member.weight for member in chosen)
    like = judged_policy(algorithm, task)
    return [
        (
            member.weight / total,
            checkpoint.restore(folder / "members" / f"{member.step:08d}.safetensors", like)[0],
        )
        for member in chosen
    ]
