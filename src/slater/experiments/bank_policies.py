"""The policies of a bank: what Slater makes of one part of a log, and those that made the log.

    members     of a short run of PDCA, at the middle one of the behaviour's limits
    rivals      bc-safe at the least and the largest limit, COptiDICE and CPQ at the middle one
    in-sample   advantage-weighted clones over multipliers (`slater.deep.ope.in_sample`)
    clones      of every third source
    sources     as they were recorded; their episodes in the part that trains tell part of their truth
    shaken      sources with noise on every weight, little and much

All settings are here by name, so that another default elsewhere makes no other bank. Runs and clones are
kept in the bank's folder; what is there is not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slater.collect.behaviour import Behaviour, load_behaviour
from slater.collect.recording import Recording, recorded_source
from slater.data import Dataset, load
from slater.errors import InputError
from slater.policy import GaussianPolicy
from slater.runs import is_run, open_run, read_result
from slater.runs.held_out import HeldOut, without_held_out

__all__ = ["BankPlan", "BankTask", "Candidate", "RunPlan", "candidates_of", "open_task"]


@dataclass(frozen=True)
class RunPlan:
    """A run: the limit is that of this number among the behaviour's, from least to largest."""

    algorithm: str
    limit: int
    members: int
    """kept policies that are judged, spread evenly over the run, the last one among them"""
    settings: dict[str, Any]


_SMALL = {"batch_size": 256, "hidden": (128, 128), "gamma": 0.99}
#: warm start, three parts of four rounds
_PDCA = {
    **_SMALL, "steps": 4_215, "warm_steps": 600, "model_steps": 1_500, "joint_steps": 300
}  # fmt: skip


@dataclass(frozen=True)
class BankPlan:
    """What a bank is made of; equal plans on equal files give the same policies."""

    share: float = 0.4
    """of the log's episodes that judge; the others train"""
    seed: int = 10
    """of every run"""
    runs: tuple[RunPlan, ...] = (
        RunPlan("pdca", 1, 3, _PDCA),
        RunPlan("bc-safe", 0, 1, {**_SMALL, "steps": 2_000}),
        RunPlan("bc-safe", 2, 1, {**_SMALL, "steps": 2_000}),
        RunPlan("coptidice", 1, 1, {**_SMALL, "steps": 2_000}),
        RunPlan("cpq", 1, 1, {**_SMALL, "steps": 2_000, "vae_steps": 500, "vae_hidden": (128, 128)}),
    )
    """short runs"""
    multipliers: tuple[float, ...] = (0.0, 1.0, float("inf"))
    """of the in-sample policies"""
    clone_steps: int = 2_000
    """iterations of clones and in-sample policies, and of the critics behind the latter"""
    clones_every: int = 3
    """one source of so many is cloned into the bank"""
    shakes: tuple[float, ...] = (0.1, 0.3)
    """relative size of the noise on the weights; of one source each"""


@dataclass(frozen=True)
class Candidate:
    """A policy to be judged, and the costs of its logged episodes that the log which judges it lacks.

    imitates: whether it acted in the log or was made by a likelihood of logged actions, however weighted
    (`slater.certify.calibration`)
    """

    name: str
    kind: str
    policy: Any
    logged: tuple[float, ...] = ()
    imitates: bool = True


@dataclass(frozen=True, eq=False)
class BankTask:
    """A log in two parts with the behaviour that made it; folder: where its runs are kept."""

    name: str
    path: Path
    behaviour: Behaviour
    whole: Dataset
    trains: Dataset
    judges: Dataset
    kept: HeldOut = field(repr=False)
    folder: Path

    @property
    def limits(self) -> list[float]:
        """The behaviour's limits, from least to largest."""
        return sorted(float(limit) for limit in self.behaviour.limits)


def open_task(name: str, behaviours: Path, data: Path, folder: Path, plan: BankPlan) -> BankTask:
    """The files of a task, read and split."""
    behaviour = load_behaviour(behaviours / f"{name}.safetensors")
    whole = load(data / f"{name}.hdf5")
    if whole.source is None or "recording" not in whole.metadata.notes:
        raise InputError(f"{data / name}.hdf5 does not say how it was recorded, and from which sources.")
    if len(whole.cost_names) != 1:
        raise InputError(f"the data of {name} have {len(whole.cost_names)} costs; a bank takes one.")
    trains, kept = without_held_out(whole, plan.share)
    assert kept is not None
    judges = whole.subset(list(kept.episodes))
    return BankTask(name, data / f"{name}.hdf5", behaviour, whole, trains, judges, kept, folder / name)


def candidates_of(task: BankTask, plan: BankPlan, tick: Callable[[str], None]) -> Iterator[Candidate]:
    """The policies of a task, one after the other; those that need training are trained when asked for."""
    yield from _sources(task, plan)
    yield from _clones(task, plan, tick)
    for run in plan.runs:
        yield from _of_run(task, run, plan, tick)


def _sources(task: BankTask, plan: BankPlan) -> Iterator[Candidate]:
    whole = task.whole
    assert whole.source is not None
    recording = Recording(**json.loads(whole.metadata.notes["recording"]))
    trains = np.ones(len(whole.episodes), dtype=bool)
    trains[list(task.kept.episodes)] = False
    for source in task.behaviour.sources:
        logged = whole.episodes.costs[(whole.source == source.name) & trains, 0]
        yield Candidate(
            source.name, "source", recorded_source(source.policy, recording), tuple(logged.tolist())
        )
    for number, size in enumerate(plan.shakes):
        source = task.behaviour.sources[number % len(task.behaviour.sources)]
        if isinstance(source.policy, GaussianPolicy):
            name = f"{source.name}, shaken by {size:g}"
            yield Candidate(name, "shaken", _shaken(source.policy, size, plan.seed), imitates=False)


def _shaken(policy: GaussianPolicy, size: float, seed: int) -> GaussianPolicy:
    """The policy with every weight times 1 + size times noise."""
    rng = np.random.default_rng(seed)
    weights = tuple(
        (w * (1.0 + size * rng.standard_normal(w.shape))).astype(np.float32) for w in policy.weights
    )
    return replace(policy, weights=weights)


def _clones(task: BankTask, plan: BankPlan, tick: Callable[[str], None]) -> Iterator[Candidate]:
    from slater.deep.ope.cloning import CloneSettings
    from slater.deep.ope.ensemble import EnsembleSettings
    from slater.deep.ope.in_sample import InSampleSettings
    from slater.deep.ope.study import StudySettings, study
    from slater.deep.task import state_task
    from slater.limits import Limit

    # a study without an ensemble of use: the columns that it has are wanted
    settings = StudySettings(
        cohorts=8,
        ensemble=EnsembleSettings(
            copies=2, steps=1, batch_size=8, learning_rate=1e-3, hidden=(8,), outcome_hidden=(8,), seed=0
        ),
        clones=CloneSettings(
            steps=plan.clone_steps, chunk=max(plan.clone_steps // 4, 1), batch_size=128, learning_rate=3e-3,
            hidden=(128, 128), seed=plan.seed,
        ),
        in_sample=InSampleSettings(
            multipliers=plan.multipliers, temperature=0.5, steps=plan.clone_steps, batch_size=256,
            learning_rate=1e-3, hidden=(128, 128), seed=plan.seed,
        ),
    )  # fmt: skip
    tick(f"{task.name}: clones")
    cost = task.whole.cost_names[0]
    stated = state_task(task.trains, (Limit.episode(task.limits[0], cost),), 0.99)
    found = study(task.trains, stated, settings, task.folder / "study")
    for number, name in list(enumerate(found.cohorts.names))[:: plan.clones_every]:
        yield Candidate(f"clone of {name}", "clone", found.policy(number).export(stated))
    for number, multiplier in enumerate(plan.multipliers):
        policy = found.policy(len(found.cohorts) + number).export(stated)
        yield Candidate(f"in-sample at {multiplier:g}", "in-sample", policy)


def _of_run(task: BankTask, run: RunPlan, plan: BankPlan, tick: Callable[[str], None]) -> Iterator[Candidate]:
    from slater.deep import find, resume
    from slater.deep import train as train_into

    limit = task.limits[min(run.limit, len(task.limits) - 1)]
    folder = task.folder / f"{run.algorithm}-{limit:g}"
    if not is_run(folder):
        tick(f"{task.name}: {folder.name}")
        train_into(
            run.algorithm, task.whole, [limit], folder, seed=plan.seed, hold_out=plan.share,
            options={"estimate": False, "data": str(task.path)}, **run.settings,
        )  # fmt: skip
    elif read_result(folder) is None:
        resume(folder, task.whole)
    saved = open_run(folder)
    members = saved.result.members
    own = [k for k, member in enumerate(members) if member.kind == "iterate"]
    chosen = own[::-1][:: -(-len(own) // run.members)][: run.members]
    imitates = find(run.algorithm).imitates
    for k in sorted(chosen):
        yield Candidate(
            f"{folder.name}, {members[k].name}", f"member of {run.algorithm}", saved.kept_policy(members[k]),
            imitates=imitates,
        )  # fmt: skip
