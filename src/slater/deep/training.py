"""The one loop: every algorithm trains here.

Iterations run in compiled chunks, with the dataset on the device; the minibatch and all noise of
iteration k come from a key made of (seed, k), so that there is no random state to lose and a resumed run
draws what it would have drawn. Chunks end where something is due: a line of metrics, a member of the
mixture, an evaluation, a checkpoint, a change of phase.

A run is a folder:

    run.json                 algorithm, settings, data with its fingerprint, limits in all units, seed
    checkpoint.safetensors   the whole state, the step and the members so far; replaced atomically
    metrics.jsonl            one JSON object per line
    members/NNNNNNNN.safetensors, policy.safetensors, mixture.safetensors   policies (`slater.policy.load`)
    result.json              what came out, when the run is finished
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater import __version__
from slater.data import Dataset
from slater.deep import checkpoint
from slater.deep.algorithm import Algorithm, Member, find, make_config
from slater.deep.metrics import MetricsFile
from slater.deep.networks import Exportable
from slater.deep.problem import Problem, prepare
from slater.errors import InputError
from slater.limits import Limit, resolve_limits
from slater.policy import Mixture, write_atomic
from slater.policy import save as save_policy

__all__ = ["DivergedError", "Run", "Watcher", "compile_chunk", "initial_state", "read_run", "resume", "train"]

#: no loss of scaled utilities comes near this while training is sane
EXPLOSION = 1e8


class DivergedError(RuntimeError):
    """A loss became NaN or exploded; says the step, the loss and the last good checkpoint."""


class Watcher:
    """Told what happens in a run; the default says nothing. `slater train` shows it on the terminal."""

    def started(self, run: Run, problem: Problem, step: int) -> None:
        """The run starts at iteration `step` (more than 0: it is resumed)."""

    def progressed(self, row: Mapping[str, Any]) -> None:
        """A row of metrics was written."""

    def selecting(self, what: str, done: int, total: int) -> None:
        """Training is over and members are being estimated."""

    def finished(self, result: Mapping[str, Any]) -> None:
        """The run is complete."""


@dataclass(frozen=True)
class Run:
    """What defines a run, all of it: the same `Run` gives the same bits (on the same machine).

    algorithm, preset, settings: by name; settings overrule the preset
    limits: texts as on the command line, one per cost
    data: where the dataset is from, as a path or a remark; fingerprint: its SHA-256
    log_every, checkpoint_every: iterations; env, eval_every, eval_episodes: rollouts while training
    """

    algorithm: str
    limits: tuple[str, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preset: str | None = None
    seed: int = 0
    data: str = "in memory"
    fingerprint: str = ""
    log_every: int = 100
    checkpoint_every: int = 1_000
    env: str | None = None
    eval_every: int | None = None
    eval_episodes: int = 10

    def __post_init__(self) -> None:
        for name in ("log_every", "checkpoint_every", "eval_episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.eval_every is not None and self.eval_every < 1:
            raise InputError(f"eval_every must be at least 1, not {self.eval_every}.")

    def make(self) -> Algorithm[Any, Any]:
        """The algorithm with its settings."""
        kind = find(self.algorithm)
        return kind(make_config(kind, self.settings, self.preset))


def train(
    algorithm: str,
    dataset: Dataset,
    limits: Sequence[Limit | str | float],
    out: str | Path,
    *,
    seed: int = 0,
    preset: str | None = None,
    watcher: Watcher | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train `algorithm` on `dataset` under `limits` into the folder `out`; return the result.

    settings: the algorithm's own, by name (`steps`, `gamma`, ...). options: fields of `Run` such as
    `log_every`. A folder that holds a run already is refused; continue it with `resume`.
    """
    resolved = resolve_limits(limits, dataset.cost_names)
    run = Run(
        algorithm=algorithm, limits=tuple(map(str, resolved)), settings=settings, preset=preset, seed=seed,
        fingerprint=dataset.fingerprint, **(options or {}),
    )  # fmt: skip
    folder = Path(out)
    if (folder / "run.json").exists():
        raise InputError(
            f"{folder} holds a run already; continue it with --resume {folder} or choose another folder."
        )
    return _Training(run, dataset, folder, watcher or Watcher()).go()


def resume(folder: str | Path, dataset: Dataset, watcher: Watcher | None = None) -> dict[str, Any]:
    """Continue the run in `folder` from its last checkpoint; `dataset` must be the one it began with."""
    run = read_run(folder)
    if run.fingerprint != dataset.fingerprint:
        raise InputError(
            f"the data is not what {folder} was started with ({run.data}): its fingerprint differs."
        )
    return _Training(run, dataset, Path(folder), watcher or Watcher()).go()


def read_run(folder: str | Path) -> Run:
    """The `Run` of a folder."""
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise InputError(f"{folder} is not a run: it has no run.json.")
    try:
        record = json.loads(path.read_text())["run"]
        return Run(**{**record, "limits": tuple(record["limits"])})
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not readable as a run ({error}).") from error


class _Training:
    """One run in progress."""

    def __init__(self, run: Run, dataset: Dataset, folder: Path, watcher: Watcher) -> None:
        self.run, self.folder, self.watcher = run, folder, watcher
        self.algorithm = run.make()
        config = self.algorithm.config
        self.algorithm.check(dataset)
        self.problem, transitions = prepare(
            dataset, resolve_limits(run.limits, dataset.cost_names), config.gamma,
            normalise_observations=config.normalise_observations, reward_scale=config.reward_scale,
        )  # fmt: skip
        self.data = self.algorithm.data(dataset, self.problem, transitions)
        self.key = jax.random.key(run.seed)
        self.chunk = compile_chunk(self.algorithm, self.problem)
        self.members: list[Member] = []
        self.saved = -1

    # -- the loop -----------------------------------------------------------------------------------------

    def go(self) -> dict[str, Any]:
        initial = initial_state(self.algorithm, self.problem, self.key)
        self._claim_folder(checkpoint.size_of(initial))
        state, step = self._load(initial)
        self.watcher.started(self.run, self.problem, step)
        metrics = MetricsFile(self.folder / "metrics.jsonl", step)
        clock = time.perf_counter()
        interrupted = False
        with _on_interrupt() as asked:
            while step < self.algorithm.config.steps and not interrupted:
                phase, stop = self._next_stop(step)
                before = time.perf_counter()
                state, sums, bad = self.chunk(
                    (self.data, self.key), state, jnp.asarray(step), jnp.asarray(stop), phase
                )
                row = {name: float(total) / (stop - step) for name, total in sums.items()}
                self._check(int(bad), row)
                seconds = time.perf_counter() - before
                head = {"step": stop, "phase": phase, "steps_per_second": (stop - step) / seconds}
                step = stop
                if self.algorithm.keeps(step):
                    self._keep(state, step)
                if self.run.env and self.run.eval_every and step % self.run.eval_every == 0:
                    row |= self._evaluate(state, step)
                if step % self.run.log_every == 0 or step == self.algorithm.config.steps:
                    line = {**head, "seconds": round(time.perf_counter() - clock, 3), **row}
                    metrics.write(line)
                    self.watcher.progressed(line)
                interrupted = asked.is_set()
                if step % self.run.checkpoint_every == 0 or interrupted:
                    self._save(state, step)
        metrics.close()
        self._save(state, step)
        if interrupted:
            raise KeyboardInterrupt(
                f"stopped after {step} of {self.algorithm.config.steps} steps; continue with: "
                f"slater train --resume {self.folder}"
            )
        return self._finish(state)

    def _next_stop(self, step: int) -> tuple[str, int]:
        """The phase of iteration `step`, and the iteration before which something is due."""
        phase, stop = self.algorithm.phase(step)
        stop = min(stop, self.algorithm.config.steps)
        for every in (self.run.log_every, self.run.checkpoint_every, self.run.eval_every):
            if every is not None:
                stop = min(stop, (step // every + 1) * every)
        if keep := next((k for k in range(step + 1, stop) if self.algorithm.keeps(k)), None):
            stop = keep
        return phase, stop

    def _check(self, bad: int, row: Mapping[str, float]) -> None:
        if bad < 0:
            return
        wrong = next(
            (n for n, v in row.items() if n.startswith("loss/") and not abs(v) < EXPLOSION), "a loss"
        )
        last = (
            f"the last good checkpoint is of step {self.saved}"
            if self.saved > 0
            else "there is no checkpoint yet"
        )
        raise DivergedError(
            f"{wrong} became NaN or larger than {EXPLOSION:g} at step {bad}; {last} in {self.folder}. "
            "Lower eta_fast or eta_slow, or raise C."
        )

    def _evaluate(self, state: Any, step: int) -> dict[str, float]:
        from slater.deep.evaluation import quick_evaluation

        policy = self.algorithm.policy(state).export(self.problem)
        assert self.run.env is not None
        return quick_evaluation(
            policy, self.run.env, self.run.eval_episodes, 1000 + self.run.seed, self.problem.cost_names
        )

    # -- the folder ---------------------------------------------------------------------------------------

    def _claim_folder(self, state_bytes: int) -> None:
        """Say before training starts that the folder cannot be written or the disk is too small."""
        try:
            (self.folder / "members").mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            # a new checkpoint stands beside the old one for a moment; members and metrics are smaller
            if free < 3 * state_bytes + 2**20:
                raise InputError(
                    f"the disk of {self.folder} has {free / 2**20:.0f} MB left; "
                    f"this run needs about {3 * state_bytes / 2**20 + 1:.0f} MB."
                )
            if not (self.folder / "run.json").exists():
                record = {
                    "version": __version__,
                    "run": dataclasses.asdict(self.run),
                    "config": dataclasses.asdict(self.algorithm.config),
                    "problem": self.problem.describe(),
                }
                write_atomic(self.folder / "run.json", json.dumps(record, indent=1).encode())
            write_atomic(self.folder / ".writable", b"")
            (self.folder / ".writable").unlink()
        except OSError as error:
            raise InputError(f"the folder {self.folder} cannot be written: {error.strerror}.") from error

    def _load(self, initial: Any) -> tuple[Any, int]:
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return initial, 0
        state, record = checkpoint.restore(path, initial)
        self.members = [
            Member(m["step"], m["estimates"] and tuple(m["estimates"])) for m in record["members"]
        ]
        self.saved = int(record["step"])
        return state, self.saved

    def _save(self, state: Any, step: int) -> None:
        if step == self.saved:
            return
        record = {"step": step, "members": [dataclasses.asdict(m) for m in self.members]}
        try:
            checkpoint.save(self.folder / "checkpoint.safetensors", state, record)
        except OSError as error:
            raise InputError(
                f"the checkpoint of step {step} could not be written to {self.folder} ({error.strerror}); "
                f"the one of step {max(self.saved, 0)} is kept. Make room and run: "
                f"slater train --resume {self.folder}"
            ) from error
        self.saved = step

    def _member_path(self, member: Member) -> Path:
        return self.folder / "members" / f"{member.step:08d}.safetensors"

    def _keep(self, state: Any, step: int) -> None:
        member = Member(step, self.algorithm.estimates(self.problem, state))
        checkpoint.save(self._member_path(member), self.algorithm.policy(state), {"step": step})
        self.members = [*(m for m in self.members if m.step < step), member]

    # -- the end ------------------------------------------------------------------------------------------

    def _finish(self, state: Any) -> dict[str, Any]:
        last = self.algorithm.policy(state)
        if not self.members:  # a run shorter than the interval: its last policy is all there is
            self._keep(state, self.algorithm.config.steps)
            self._save(state, self.algorithm.config.steps)
        policies: list[Exportable] = [checkpoint.restore(self._member_path(m), last)[0] for m in self.members]
        weights, members = self.algorithm.choose(
            self.problem, self.data, self.members, policies, jax.random.fold_in(self.key, 2**32 - 2),
            self.watcher.selecting,
        )  # fmt: skip
        chosen = [k for k in range(len(members)) if weights[k] > 0]
        mixture = Mixture(tuple(policies[k].export(self.problem) for k in chosen), weights[chosen])
        save_policy(mixture, self.folder / "mixture.safetensors")
        save_policy(last.export(self.problem), self.folder / "policy.safetensors")
        result = {
            "algorithm": self.run.algorithm,
            "seed": self.run.seed,
            "steps": self.algorithm.config.steps,
            "limits": self.problem.describe()["limits"],
            **self._summary(members, weights),
            **self.algorithm.report(self.problem, state, members, weights),
        }
        write_atomic(self.folder / "result.json", json.dumps(result, indent=1).encode())
        self.watcher.finished(result)
        return result

    def _summary(self, members: Sequence[Member], weights: np.ndarray) -> dict[str, Any]:
        """Members with weights and estimates in raw discounted units, and those of the mixture."""
        names = ("reward", *self.problem.cost_names)
        rows: list[dict[str, Any]] = []
        for member, weight in zip(members, weights, strict=True):
            row: dict[str, Any] = {"step": member.step, "weight": float(weight), "careful": member.careful}
            if member.estimates is not None:
                values = self.problem.unscaled(np.array(member.estimates))
                row["estimates"] = dict(zip(names, values.tolist(), strict=True))
            rows.append(row)
        summary: dict[str, Any] = {"members": rows}
        if all(member.estimates is not None for member in members):
            values = self.problem.unscaled(weights @ np.array([member.estimates for member in members]))
            summary["mixture_estimates"] = dict(zip(names, values.tolist(), strict=True))
        return summary


def initial_state(algorithm: Algorithm[Any, Any], problem: Problem, key: Array) -> Any:
    """The first state, compiled in one piece: each array its own buffer, which a chunk may reuse."""

    @jax.jit
    def init(key: Array) -> Any:
        state = algorithm.init(problem, jax.random.fold_in(key, 2**32 - 1))
        # a weakly typed scalar would become strongly typed later and have everything compiled twice
        return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)

    return init(key)


def compile_chunk(
    algorithm: Algorithm[Any, Any], problem: Problem
) -> Callable[..., tuple[Any, dict[str, Array], Array]]:
    """Iterations [start, stop) of one phase as one call: state, sums of metrics, the first bad step or -1.

    The bounds are arguments, not constants: the same machine code runs whatever the length of a chunk, so
    the bits do not depend on where a run was cut.
    """

    @eqx.filter_jit(donate="all-except-first")
    def chunk(
        constants: tuple[Any, Array], state: Any, start: Array, stop: Array, phase: str
    ) -> tuple[Any, dict[str, Array], Array]:
        data, key = constants

        def iteration(step: Array, state: Any) -> tuple[Any, dict[str, Array]]:
            key_batch, key_update = jax.random.split(jax.random.fold_in(key, step))
            batch = algorithm.draw(problem, data, key_batch)
            return algorithm.update(problem, state, batch, key_update, step, phase)

        def body(
            carry: tuple[Array, Any, dict[str, Array], Array],
        ) -> tuple[Array, Any, dict[str, Array], Array]:
            step, state, sums, _ = carry
            state, metrics = iteration(step, state)
            losses = jnp.stack([value for name, value in metrics.items() if name.startswith("loss/")])
            fine = jnp.all(jnp.abs(losses) < EXPLOSION)  # False for NaN too
            sums = {name: sums[name] + value for name, value in metrics.items()}
            return step + 1, state, sums, jnp.where(fine, -1, step)

        def goes_on(carry: tuple[Array, Any, dict[str, Array], Array]) -> Array:
            return (carry[0] < stop) & (carry[3] < 0)

        shapes = eqx.filter_eval_shape(iteration, start, state)[1]
        zeros = {name: jnp.zeros(leaf.shape) for name, leaf in shapes.items()}
        _, state, sums, bad = jax.lax.while_loop(goes_on, body, (start, state, zeros, jnp.asarray(-1)))
        return state, sums, bad

    return chunk


@contextmanager
def _on_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C and a polite kill set the event rather than stop in the middle; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handler(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, old in before.items():
            signal.signal(number, old)
