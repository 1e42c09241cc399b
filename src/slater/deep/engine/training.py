"""The one loop: every algorithm trains here.

Iterations run in compiled chunks, with the data on the device; the minibatch and all noise of iteration k
come from a key made of (seed, k), so that there is no random state to lose and a resumed run draws what it
would have drawn. Chunks end where something is due: a line of metrics, a member of the mixture, an
evaluation, a checkpoint, a change of phase, the next shard of data larger than memory.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from slater.data import Dataset, StoredDataset
from slater.data.past import remedy
from slater.deep import checkpoint
from slater.deep.algorithms.base import Algorithm
from slater.deep.batches import on_device
from slater.deep.compiled import keep_compiled
from slater.deep.engine import iterations
from slater.deep.engine.contract import exported
from slater.deep.engine.finish import finish
from slater.deep.engine.folder import (
    RunFolder,
    algorithm_of,
    identity_of,
    recorded_algorithm,
    refuse_other_task,
    run_on,
)
from slater.deep.engine.iterations import EXPLOSION, Chunk, CompilingAhead
from slater.deep.engine.sources import BatchSource, Shards, as_read, fits, row_bytes
from slater.deep.task import Task
from slater.disk import locked
from slater.errors import InputError
from slater.interrupts import on_interrupt
from slater.limits import Limits, resolve_limits
from slater.runs import MetricsFile, Record, Result, Run, is_run, read_run
from slater.runs.held_out import HeldOut, read_held_out, training_part, without_held_out
from slater.runs.metrics import METRICS
from slater.runs.record import read_record, write_extension


class DivergedError(RuntimeError):
    """A loss became NaN or exploded; says the step, the loss and the last good checkpoint."""


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and has saved; says how far it is. folder: of the one run, None for several."""

    def __init__(self, text: str, folder: Path | None = None) -> None:
        super().__init__(text)
        self.folder = folder


class Watcher:
    """Told what happens in a run; the default says nothing. `slater train` shows it on the terminal."""

    def started(self, run: Run, task: Task, step: int) -> None:
        """The run starts at iteration `step` (more than 0: it is resumed)."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Before the first iteration something is learned from the whole dataset."""

    def progressed(self, row: Mapping[str, Any]) -> None:
        """A row of metrics was written."""

    def selecting(self, what: str, done: int, total: int) -> None:
        """Training is over and members are being estimated."""

    def finished(self, result: Result) -> None:
        """The run is complete."""

    def noticed(self, text: str) -> None:
        """Something that a person should hear of, as a sentence."""


def train(
    algorithm: str,
    dataset: Dataset | StoredDataset,
    limits: Limits,
    out: str | Path,
    *,
    seed: int = 0,
    preset: str | None = None,
    hold_out: float | None = None,
    watcher: Watcher | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train `algorithm` on `dataset` under `limits` into the folder `out`; return the result.

    limits: one per cost, in any form that `slater.limits.limit_list` takes. settings: the
    algorithm's own, by name (`steps`, `gamma`, ...). options: fields of `Run` such as `log_every`. hold_out:
    share of the episodes that are kept from training to judge by, the same for every seed, as 0.2. A store
    that fits in `memory` (an option, GB) is loaded, a larger one is trained on in shards. A folder that
    holds a run already is refused; continue it with `resume`.
    """
    dataset, kept = without_held_out(as_read(dataset, (options or {}).get("reading", {})), hold_out)
    run = make_run(algorithm, dataset, limits, seed=seed, preset=preset, options=options, settings=settings)
    folder, watcher = Path(out), watcher or Watcher()
    _refuse_taken(folder)
    # what refuses the data or the settings comes before the folder is made
    training = Training(run, dataset, folder, watcher, kept=kept)
    try:
        with held(folder, watcher):
            _refuse_taken(folder)
            for doubt in dataset.episodes.doubts(training.task.limits, training.task.units):
                watcher.noticed(doubt)
            if isinstance(dataset, Dataset) and (hidden := remedy(dataset.hidden)):
                watcher.noticed(hidden)
            return training.go()
    finally:
        training.source.close()


def _refuse_taken(folder: Path) -> None:
    if is_run(folder):
        raise InputError(f"{folder} holds a run already; resume it or choose another folder.")


@contextmanager
def held(folder: Path, watcher: Watcher) -> Iterator[None]:
    """Work in a run's folder, alone; its watcher hears of a process that died there."""
    with locked(folder) as died:
        if died is not None:
            watcher.noticed(f"{died} died in {folder}; what it had not saved is done again.")
        yield


def make_run(
    algorithm: str, dataset: Dataset | StoredDataset, limits: Limits, *, seed: int,
    preset: str | None, options: Mapping[str, Any] | None, settings: Mapping[str, Any],
) -> Run:  # fmt: skip
    """The record of a run, from the arguments of `train`."""
    resolved = resolve_limits(limits, dataset.cost_names, dataset.metadata.step)
    return Run(
        algorithm=algorithm, limits=resolved, settings=settings, preset=preset, seed=seed,
        fingerprint=dataset.fingerprint, **(options or {}),
    )  # fmt: skip


def resume(
    folder: str | Path, dataset: Dataset | StoredDataset, watcher: Watcher | None = None, *,
    steps: int | None = None,
) -> Result:  # fmt: skip
    """Continue the run in `folder` from its last checkpoint; `dataset` must be the one it began with.

    Episodes that the run keeps from training are left out of it.

    steps: extends the run to so many iterations in all, finished or not. What was done stays as it is, to
    the bit, and so do the lengths of phases and all other settings, as they were decided when the run began
    (phases that were shortened for a short run stay short). The rest is done as if the run had begun with
    the new number: a run of 10,000 iterations extended to 20,000 equals one of 20,000, unless its phases
    were shortened to fit into 10,000.
    """
    watcher, folder = watcher or Watcher(), Path(folder)
    dataset = training_part(as_read(dataset, read_run(folder).reading), read_held_out(folder))
    run_on(folder, dataset)  # a folder that holds no run is refused before a lock is left in it
    with held(folder, watcher):
        run_on(folder, dataset)
        before = read_record(folder)
        record = before if steps is None else before.extended_to(steps)
        opened = open_data(record.run, recorded_algorithm(record), dataset)
        training = Training(record.run, dataset, folder, watcher, opened)
        if record != before:
            training.extends = record
        return training.go()


def open_data(
    run: Run, algorithm: Algorithm[Any, Any], dataset: Dataset | StoredDataset
) -> tuple[Algorithm[Any, Any], Task, BatchSource]:
    """The algorithm, informed; the problem; the source of minibatches: all data if they fit, else shards."""
    keep_compiled()
    algorithm.check(dataset)
    if isinstance(dataset, StoredDataset):
        if not fits(dataset, run.memory):
            if not algorithm.streams:
                raise InputError(
                    f"{algorithm.name} needs the whole dataset in memory, and {dataset.path} does not fit in "
                    f"{run.memory:g} GB; allow more memory or choose another algorithm."
                )
            task, size = algorithm.task(dataset, run.limits), algorithm.config.batch_size
            return algorithm, task, Shards(dataset, task, seed=run.seed, memory=run.memory, batch_size=size)
        dataset = dataset.load()
    task = algorithm.task(dataset, run.limits)
    algorithm = algorithm.informed(dataset, task)
    return algorithm, task, BatchSource(algorithm.data(dataset, task, on_device(dataset, task)))


def _refuse_too_large(algorithm: Algorithm[Any, Any], dataset: Dataset | StoredDataset) -> None:
    """Say before training that networks or minibatches cannot be in the machine's memory."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not known on this system
        return
    widths = algorithm.config.hidden
    weights = max((a * b for a, b in itertools.pairwise(widths)), default=widths[0]) * 4
    batch = algorithm.config.batch_size * row_bytes(dataset)
    if max(weights, batch) > memory / 4:
        what, value = ("batch_size", algorithm.config.batch_size) if batch > weights else ("hidden", widths)
        raise InputError(
            f"{what}={value} needs {max(weights, batch) / 2**30:.3g} GB of memory for one array; this "
            f"machine has {memory / 2**30:.3g} GB: lower it."
        )


class Training:
    """One run in progress: `go` alone, or `begin`, `record`, `end` around a loop that several runs share."""

    def __init__(
        self, run: Run, dataset: Dataset | StoredDataset, folder: Path, watcher: Watcher,
        opened: tuple[Algorithm[Any, Any], Task, BatchSource] | None = None, kept: HeldOut | None = None,
    ) -> None:  # fmt: skip
        """Prepare the data, or share what another run has `opened`: its algorithm, problem and source.

        kept: what `dataset` is without, written into the folder of a new run.
        """
        self.run, self.dataset, self.watcher, self.kept = run, dataset, watcher, kept
        if opened is None:
            opened = open_data(run, algorithm_of(run, dataset), dataset)
        self.algorithm, self.task, self.source = opened
        refuse_other_task(folder, run, self.task)
        self.folder = RunFolder(folder, identity_of(run, self.algorithm, self.task))
        _refuse_too_large(self.algorithm, dataset)
        self.extends: Record | None = None  # written when all that could refuse it has been asked
        self.key = jax.random.key(run.seed)

    def go(self) -> Result:
        """Train to the end; the result."""
        try:
            return self.end(self._loop())
        finally:
            self.source.close()

    def _loop(self) -> Any:
        """The state after the last iteration."""
        chunk, steps = iterations.compile_chunk(self.algorithm, self.task), self.algorithm.config.steps
        ahead = self._compiling(chunk)
        interrupted = False
        try:
            state, step = self.begin(iterations.initial_state(self.algorithm, self.task, self.key))
            with on_interrupt() as asked:
                while step < steps and not interrupted:
                    phase, stop = self.next_stop(step)
                    ahead.await_code(phase)
                    before = time.perf_counter()
                    constants = (self.source.at(step), self.key)
                    state, sums, bad = chunk(constants, state, jnp.asarray(step), jnp.asarray(stop), phase)
                    row = {name: float(total) / (stop - step) for name, total in sums.items()}
                    rate = (stop - step) / (time.perf_counter() - before)
                    self.record(state, stop, phase, row, int(bad), rate)
                    step = stop
                    interrupted = asked.is_set()
                    if step % self.run.checkpoint_every == 0 or interrupted:
                        self.folder.save(state, step)
        finally:
            ahead.close()
        self.stop(state, step)
        if interrupted:
            path = self.folder.path
            raise Interrupted(f"stopped after {step} of {steps} steps; resume {path} to go on.", path)
        return state

    def _compiling(self, chunk: Chunk) -> CompilingAhead:
        """A thread that compiles the phases of a new run; one that goes on has most of them behind it."""
        if self.folder.has_checkpoint:
            return CompilingAhead(chunk, (None, self.key), None, ())
        phases, step = dict[str, None](), 0
        while step < self.algorithm.config.steps:
            phase, step = self.algorithm.phase(step)
            phases[phase] = None
        blank = iterations.blank_state(self.algorithm, self.task, self.key)
        return CompilingAhead(chunk, (self.source.at(0), self.key), blank, tuple(phases))

    def begin(self, initial: Any) -> tuple[Any, int]:
        """Claim the folder; the state and the step to go on from, `initial` and 0 in a new run."""
        env_id = self.dataset.metadata.env_id
        size = checkpoint.size_of(initial)
        self.folder.claim(self.run, self.algorithm.config, self.task, size, env_id, self.kept)
        state, step = self.folder.load(initial)
        if self.extends is not None:
            write_extension(self.folder.path, self.extends)
        # of a run that was extended: what was kept only because it was the end is no longer a member
        self.folder.members = [m for m in self.folder.members if self.algorithm.keeps(m.step)]
        self.watcher.started(self.run, self.task, step)
        if step == 0:
            state = self.algorithm.prepared(self.task, state, self.dataset, self.watcher.preparing)
        self._metrics = MetricsFile(self.folder.path / METRICS, step)
        self._clock = time.perf_counter()
        return state, step

    def record(self, state: Any, step: int, phase: str, row: dict[str, float], bad: int, rate: float) -> None:
        """Do what is due after iteration `step`: keep a member, roll out, write a line of metrics.

        row: the means of a chunk's metrics; bad: the iteration in which a loss was not sane, or -1; rate:
        iterations per second.
        """
        self._check(bad, row)
        if self.algorithm.keeps(step) and (kept := self.algorithm.member(self.task, state, step)):
            self.folder.keep(*kept)
        last = step == self.algorithm.config.steps
        if self.run.env and self.run.eval_every and (step % self.run.eval_every == 0 or last):
            row = row | self._evaluate(state)
        if step % self.run.log_every == 0 or last:
            head = {"step": step, "phase": phase, "steps_per_second": rate}
            line = {**head, "seconds": round(time.perf_counter() - self._clock, 3), **row}
            self._metrics.write(line)
            self.watcher.progressed(line)

    def stop(self, state: Any, step: int) -> None:
        """Close the metrics and save."""
        self._metrics.close()
        self.folder.save(state, step)

    def end(self, state: Any) -> Result:
        """Choose the mixture from the last state and write what came out; the result."""
        data = self.source.at(self.algorithm.config.steps)
        key = jax.random.fold_in(self.key, 2**32 - 2)
        result = finish(
            self.run, self.algorithm, self.task, data, state, self.folder, key,
            self.watcher.selecting, self.dataset,
        )  # fmt: skip
        self.watcher.finished(result)
        return result

    def next_stop(self, step: int) -> tuple[str, int]:
        """The phase of iteration `step`, and the iteration before which something is due."""
        phase, stop = self.algorithm.phase(step)
        stop = min(stop, self.algorithm.config.steps, self.source.until(step) or stop)
        for every in (self.run.log_every, self.run.checkpoint_every, self.run.eval_every):
            if every is not None:
                stop = min(stop, (step // every + 1) * every)
        if keep := next((k for k in range(step + 1, stop) if self.algorithm.keeps(k)), None):
            stop = keep
        return phase, stop

    def _check(self, bad: int, row: Mapping[str, float]) -> None:
        if bad < 0:
            return
        losses = (name for name, x in row.items() if name.startswith("loss/") and not abs(x) < EXPLOSION)
        wrong, last = next(losses, "a loss"), "there is no checkpoint yet"
        if self.folder.saved > 0:
            last = f"the last good checkpoint is of step {self.folder.saved}"
        raise DivergedError(
            f"{wrong} became NaN or larger than {EXPLOSION:g} at step {bad}; {last} in {self.folder.path}. "
            f"{self.algorithm.remedy}"
        )

    def _evaluate(self, state: Any) -> dict[str, float]:
        """Mean undiscounted return and costs per episode of the present policy."""
        from slater.envs import rollout

        policy, run = exported(self.algorithm.policy(state), self.task, self.dataset), self.run
        assert run.env is not None
        ran = rollout(policy, run.env, episodes=run.eval_episodes, seed=1000 + run.seed)
        row = {"eval/return": float(ran.returns.mean()), "eval/cost": float(ran.cost.mean())}
        own = [(i, name) for i, name in enumerate(ran.cost_names) if name in self.task.cost_names]
        return row | {f"eval/{name}": float(ran.costs[:, i].mean()) for i, name in own}
