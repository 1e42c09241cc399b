"""Many runs as one program: `vmap` over seeds, and over limits where an algorithm allows it.

For a GPU, which one small run leaves idle. Every run has its own folder, metrics, checkpoints and policies,
as it has alone, and draws the same minibatches and the same noise; only matrix products are done for all
runs at once, in another order of additions. Runs are one program if their records differ in nothing but
seed and limits; what is left over is done one group after the other.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm
from slater.deep.engine.folder import algorithm_of, run_on
from slater.deep.engine.iterations import Chunk, initial_state, iteration, run_iterations, with_tau
from slater.deep.engine.sources import fits
from slater.deep.engine.training import DivergedError, Interrupted, Training, Watcher, held, open_data
from slater.deep.task import Task
from slater.errors import InputError
from slater.interrupts import on_interrupt
from slater.limits import resolve_limits
from slater.runs import Run, is_run, read_result
from slater.runs.held_out import HeldOut


@dataclass(frozen=True)
class Planned:
    """A run to be done: its record, its folder, and who hears of it. A run that is begun goes on."""

    run: Run
    folder: Path
    watcher: Watcher


def train_together(
    plans: Sequence[Planned], dataset: Dataset | StoredDataset, kept: HeldOut | None = None
) -> dict[Path, str]:
    """Do every run that has no result yet; what went wrong with which one, by folder (empty: nothing).

    kept: what `dataset` is without. A run that diverges is left behind, the others go on; Ctrl-C saves all.
    """
    if isinstance(dataset, StoredDataset):
        if not all(fits(dataset, plan.run.memory) for plan in plans):
            raise InputError(
                f"runs as one program need all data in memory, and {dataset.path} does not fit; allow more "
                "memory or let each run be a process."
            )
        dataset = dataset.load()
    failures: dict[Path, str] = {}
    waiting = [plan for plan in plans if read_result(plan.folder) is None]
    groups: dict[str, list[Planned]] = {}
    for plan in waiting:
        run = run_on(plan.folder, dataset) if is_run(plan.folder) else plan.run
        groups.setdefault(_program_of(run, dataset), []).append(replace(plan, run=run))
    with ExitStack() as stack:
        for plan in waiting:
            stack.enter_context(held(plan.folder, plan.watcher))
        for group in groups.values():
            failures |= _Group(group, dataset, kept).go()
    return failures


def _program_of(run: Run, dataset: Dataset) -> str:
    """Equal for runs that can be one program: all of the record but the seed, and of the limits the units."""
    record = dataclasses.asdict(replace(run, seed=0))
    if algorithm_of(run).limits_are_tau:
        record["limits"] = [limit.unit for limit in resolve_limits(run.limits, dataset.cost_names)]
    # texts from the command line and numbers from Python say the same
    record["settings"] = {name: str(value) for name, value in sorted(run.settings.items())}
    return json.dumps(record)


class _Group:
    """Runs that are one program; the first one's algorithm and data serve all."""

    def __init__(self, plans: Sequence[Planned], dataset: Dataset, kept: HeldOut | None) -> None:
        first = plans[0].run
        self.algorithm, self.task, self.source = open_data(first, algorithm_of(first, dataset), dataset)
        self.runs = []
        for plan in plans:
            opened = (self.algorithm, self.algorithm.task(dataset, plan.run.limits), self.source)
            self.runs.append(Training(plan.run, dataset, plan.folder, plan.watcher, opened, kept))

    def go(self) -> dict[Path, str]:
        """Train all to the end; what went wrong, by folder."""
        failures: dict[Path, str] = {}
        begun_at: dict[int, list[tuple[Training, Any]]] = {}
        for run in self.runs:
            tau = jnp.asarray(run.task.tau)
            state, step = run.begin(initial_state(self.algorithm, self.task, run.key, tau))
            begun_at.setdefault(step, []).append((run, state))
        # after a kill between two checkpoints some runs are behind: they first catch up with the next
        together: list[tuple[Training, Any]] = []
        steps = sorted(begun_at)
        for step, until in zip(steps, [*steps[1:], self.algorithm.config.steps], strict=True):
            together = self._advance([*together, *begun_at[step]], step, until, failures)
        for run, state in together:
            run.stop(state, self.algorithm.config.steps)
            run.end(state)
        return failures

    def _advance(
        self, members: list[tuple[Training, Any]], step: int, until: int, failures: dict[Path, str]
    ) -> list[tuple[Training, Any]]:
        """The members with their states after iteration `until`, without those that diverged."""
        chunk, (keys, taus, stack) = _compile_together(self.algorithm, self.task), _stacked(members)
        with on_interrupt() as asked:
            while step < until and members:
                phase, stop = members[0][0].next_stop(step)
                stop = min(stop, until)
                before = time.perf_counter()
                constants = (self.source.at(step), keys, taus)
                stack, sums, bad = chunk(constants, stack, jnp.asarray(step), jnp.asarray(stop), phase)
                means = {name: np.asarray(total) / (stop - step) for name, total in sums.items()}
                rate = (stop - step) / (time.perf_counter() - before)
                step, alive = stop, []
                for n, own in enumerate(_apart(stack, len(members))):
                    run, row = members[n][0], {name: float(mean[n]) for name, mean in means.items()}
                    try:
                        run.record(own, step, phase, row, int(bad[n]), rate)
                        alive.append((run, own))
                    except DivergedError as error:
                        failures[run.folder.path] = str(error)
                interrupted = asked.is_set()
                for run, own in alive:
                    if step % run.run.checkpoint_every == 0 or interrupted:
                        run.folder.save(own, step)
                if interrupted:
                    raise Interrupted(
                        f"stopped after {step} of {self.algorithm.config.steps} steps; all runs are saved, "
                        "and the same command goes on with them."
                    )
                if alive and len(alive) < len(members):
                    keys, taus, stack = _stacked(alive)
                members = alive
        return members


def _stacked(members: Sequence[tuple[Training, Any]]) -> tuple[Array, Array, Any]:
    """Keys, taus and states of N runs on the device, every leaf with an axis N first."""
    keys = jnp.stack([run.key for run, _ in members])
    taus = jnp.stack([jnp.asarray(run.task.tau) for run, _ in members])
    return keys, taus, jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state for _, state in members))


@partial(jax.jit, static_argnums=1)
def _apart(state: Any, count: int) -> list[Any]:
    """The states of `count` runs from a stacked one."""
    return [jax.tree.map(operator.itemgetter(n), state) for n in range(count)]


def _compile_together(algorithm: Algorithm[Any, Any], task: Task) -> Chunk:
    """Iterations [start, stop) of one phase for N runs, whose states, keys and taus are stacked.

    Gives the states, sums of metrics, (N,) each, and each run's first bad step or -1. A run that is bad
    goes on, so that the others need not wait; its numbers are not used.
    """

    @eqx.filter_jit(donate="all-except-first")
    def chunk(
        constants: tuple[Any, Array, Array], state: Any, start: Array, stop: Array, phase: str
    ) -> tuple[Any, dict[str, Array], Array]:
        data, keys, taus = constants

        def every(step: Array, state: Any) -> tuple[Any, dict[str, Array]]:
            def one(key: Array, tau: Array, state: Any) -> tuple[Any, dict[str, Array]]:
                return iteration(algorithm, with_tau(task, tau), data, key, step, state, phase)

            return jax.vmap(one)(keys, taus, state)

        return run_iterations(every, state, start, stop, (len(keys),))

    return chunk
