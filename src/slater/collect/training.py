"""Training the policies that are recorded: SAC runs on R - lambda.C, whose penalty lambda moves or is fixed.

A penalty that moves begins with 0. Then it goes through a list of cost targets, from the loosest to the
strictest: while the episodes cost more than the target lambda grows, while they cost less it falls. The
policy is kept at regular intervals, so that the run leaves bad, middling and good policies on both sides of
every limit: DSRL's data were made in the same manner, with a limit that moves during training. The paper's
data are of runs with fixed penalties, of which the last policy counts.

Work is done in *segments*: at the start of each, all environments begin a new episode, and whatever is drawn
depends on the seed and the number of the segment. A run that was stopped goes on at its last finished segment
with the same bits. In the folder of a run:

    recipe.json              what is trained; another recipe is refused
    rows.bin                 the replay memory, float32 rows, appended
    learner.safetensors      the learner after the last saved segment
    curve.jsonl              a line per segment: steps, penalty, mean return, cost and length of its episodes
    policies/0012000.npz     the policy after 12,000 steps
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from slater.collect import sac
from slater.collect.behaviour import policy_of
from slater.collect.sac import SACConfig, Spaces
from slater.collect.streams import Memory, Stream, spaces_of
from slater.deep import checkpoint
from slater.deep.engine.training import Interrupted
from slater.disk import append_json_line, read_json_lines, take_back_cut_line, write_atomic
from slater.envs import make
from slater.errors import InputError
from slater.interrupts import on_interrupt
from slater.jobs.engines import run_jobs
from slater.policy import CategoricalPolicy, GaussianPolicy

#: seconds between checkpoints
SAVE_SECONDS = 60.0
#: the first penalty, as a share of the reward per step that the policy earns without one
FIRST_PENALTY = 0.3


@dataclass(frozen=True)
class Recipe:
    """How policies of a task are trained; the same recipe gives the same policies, on the same machine.

    env_id: an environment; horizon: steps of its longest episode
    steps: of the whole run, over all environments; free: the share of them without a penalty
    penalty: lambda, one number per cost, or one for all; empty: it moves, in an environment with one cost
    targets: cost per episode, one stage each, of equal length in what is left of the steps
    penalty_rate: how much the logarithm of the penalty moves in 1000 steps where the cost is far from the
    target
    keep: policies kept, at equal distances; environments: how many act side by side
    rounds: horizons in a segment; more than one where episodes end early, so that long ones are seen whole
    too
    start_steps: steps with uniform actions before the policy acts
    """

    env_id: str
    horizon: int
    steps: int
    targets: tuple[float, ...] = (40.0, 20.0, 10.0, 1.0)
    free: float = 0.4
    penalty_rate: float = 0.5
    keep: int = 40
    environments: int = 4
    rounds: int = 1
    start_steps: int = 2_000
    seed: int = 1
    config: SACConfig = field(default_factory=SACConfig)
    penalty: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0.0 for value in self.penalty):
            raise InputError(f"the penalty {self.penalty} must have finite numbers of at least 0.")
        for name in ("horizon", "steps", "keep", "environments", "rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0.0 < self.free <= 1.0:
            raise InputError(f"free must be above 0 and at most 1, not {self.free}.")
        if self.free < 1.0 and not self.targets:
            raise InputError("a run with a penalty needs at least one cost target.")

    @property
    def segment(self) -> int:
        """Steps of a segment, over all environments."""
        return self.horizon * self.rounds * self.environments

    def target(self, steps: int) -> float | None:
        """The cost per episode that is aimed at after so many steps; None: no penalty."""
        begun = steps - self.free * self.steps
        if begun < 0 or not self.targets or self.penalty:
            return None
        stage = int(begun / ((1.0 - self.free) * self.steps) * len(self.targets)) if self.free < 1.0 else 0
        return self.targets[min(stage, len(self.targets) - 1)]

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


@dataclass(frozen=True)
class Segment:
    """One segment of a run: `mean_*` are per episode that ended in it (NaN if none did)."""

    number: int
    steps: int
    penalty: float | tuple[float, ...]
    target: float | None
    episodes: int
    mean_return: float
    mean_cost: float
    mean_length: float
    processor_seconds: float


@dataclass
class _Run:
    """The parts of a run in progress."""

    recipe: Recipe
    folder: Path
    spaces: Spaces
    learner: sac.Learner
    memory: Memory
    streams: list[Stream]
    segments: int = 0
    saved_rows: int = 0
    log_penalty: float | None = None
    reward_rate: float = 0.0
    seconds: float = 0.0

    def policy(self) -> GaussianPolicy | CategoricalPolicy:
        """The policy so far in NumPy, for actions in [-1, 1] or as numbers."""
        width = None if self.spaces.discrete else np.ones(self.spaces.actions, np.float32)
        return policy_of(_tensors(self.learner), None if width is None else -width, width)

    def segment(self) -> Segment:
        """Act and learn for one segment."""
        recipe, config = self.recipe, self.recipe.config
        begun = time.process_time()
        rng = np.random.default_rng([recipe.seed, self.segments, 0])
        key = jax.random.fold_in(jax.random.key(recipe.seed), self.segments)
        steps = self.segments * recipe.segment
        target = recipe.target(steps)
        moved = 0.0 if self.log_penalty is None else math.exp(self.log_penalty)
        penalty = np.broadcast_to(np.array(recipe.penalty or moved, np.float32), (self.spaces.costs,))
        for number, stream in enumerate(self.streams):
            stream.begin([recipe.seed, self.segments, number])
        every = max(1, 64 // len(self.streams))
        count = 2 * max(1, round(every * len(self.streams) * config.updates_per_step / 2))
        policy = self.policy()
        for tick in range(recipe.horizon * recipe.rounds):
            here = steps + tick * len(self.streams)
            if here >= recipe.start_steps and tick % every == 0 and self.memory.size >= config.batch_size:
                batches = self.memory.draw(count, config.batch_size, rng)
                self.learner = sac.updates(
                    self.spaces, config, self.learner, batches, jnp.asarray(penalty),
                    jax.random.fold_in(key, tick),
                )  # fmt: skip
                policy = self.policy()
            if here >= recipe.start_steps:
                actions = policy.act(np.stack([stream.observation for stream in self.streams]), rng=rng)
            elif self.spaces.discrete:
                actions = rng.integers(self.spaces.actions, size=len(self.streams))
            else:
                uniform = rng.uniform(-1.0, 1.0, (len(self.streams), self.spaces.actions))
                actions = uniform.astype(np.float32)
            for stream, action in zip(self.streams, actions, strict=True):
                self.memory.append(stream.step(action))
        self.segments += 1
        self.seconds += time.process_time() - begun
        ended = np.array([episode for stream in self.streams for episode in stream.ended])
        means = ended.mean(axis=0) if len(ended) else np.full(3, np.nan)
        done = self.segments * recipe.segment
        self._move_penalty(recipe.target(done), means)
        total, cost, length = map(float, means)
        fixed, count = recipe.penalty or moved, len(ended)
        return Segment(self.segments, done, fixed, target, count, total, cost, length, self.seconds)

    def _move_penalty(self, target: float | None, means: NDArray[Any]) -> None:
        mean_return, mean_cost, mean_length = means
        if np.isfinite(mean_return):
            self.reward_rate += 0.3 * (mean_return / mean_length - self.reward_rate)
        if target is None:
            return
        if self.log_penalty is None:
            self.log_penalty = math.log(FIRST_PENALTY * max(self.reward_rate, 0.1))
        elif np.isfinite(mean_cost):
            miss = (mean_cost - target) / max(target, 0.05 * self.recipe.horizon)
            rate = self.recipe.penalty_rate * self.recipe.segment / 1000
            self.log_penalty += rate * float(np.clip(miss, -1.0, 1.0))

    def save(self) -> None:
        """Rows first, then the checkpoint that counts them: a kill between the two leaves the older pair."""
        width = self.memory.rows.shape[1] * 4
        with (self.folder / "rows.bin").open("ab") as file:
            file.truncate(self.saved_rows * width)
            file.seek(0, 2)
            file.write(self.memory.rows[self.saved_rows : self.memory.size].tobytes())
        self.saved_rows = self.memory.size
        figures = {
            "segments": self.segments, "rows": self.saved_rows, "log_penalty": self.log_penalty,
            "reward_rate": self.reward_rate, "seconds": self.seconds,
        }  # fmt: skip
        checkpoint.save(self.folder / "learner.safetensors", self.learner, figures)

    def restore(self) -> None:
        """Go on from what `save` left, if there is something."""
        path = self.folder / "learner.safetensors"
        if not path.exists():
            return
        self.learner, figures = checkpoint.restore(path, self.learner)
        self.segments, self.saved_rows = int(figures["segments"]), int(figures["rows"])
        self.log_penalty, self.reward_rate = figures["log_penalty"], float(figures["reward_rate"])
        self.seconds = float(figures["seconds"])
        width = self.memory.rows.shape[1]
        rows = np.fromfile(self.folder / "rows.bin", np.float32, self.saved_rows * width).reshape(-1, width)
        self.memory.append(list(rows))


def _tensors(learner: sac.Learner) -> dict[str, NDArray[Any]]:
    tensors = {f"w{k}": np.asarray(w) for k, w in enumerate(learner.pi.mlp.weights)}
    return tensors | {f"b{k}": np.asarray(b) for k, b in enumerate(learner.pi.mlp.biases)}


def _started(recipe: Recipe, folder: Path) -> _Run:
    """The run in `folder`, new or where it was stopped."""
    streams = [Stream(make(recipe.env_id), recipe.config) for _ in range(recipe.environments)]
    names = streams[0].env.cost_names
    if not recipe.penalty and (len(names) != 1 or hasattr(streams[0].space, "n")):
        raise InputError(
            f"{recipe.env_id} must have one cost and continuous actions for a penalty that moves."
        )
    if recipe.penalty and len(recipe.penalty) not in (1, len(names)):
        raise InputError(
            f"the penalty {recipe.penalty} has {len(recipe.penalty)} numbers, but {recipe.env_id} has the "
            f"costs {', '.join(names)}; give one number, or one for each."
        )
    spaces = spaces_of(streams[0].env)
    learner = sac.init(spaces, recipe.config, jax.random.key(recipe.seed))
    run = _Run(recipe, folder, spaces, learner, Memory(spaces), streams)
    run.restore()
    return run


def train(recipe: Recipe, folder: Path, watch: Callable[[Segment], None] | None = None) -> None:
    """Train by `recipe` in `folder`, or go on from what is there; `watch` hears of every segment.

    Ctrl-C and a polite kill save at the end of the segment that runs, then stop.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policies").mkdir(exist_ok=True)
    path, content = folder / "recipe.json", json.dumps(recipe.record(), indent=1)
    if path.exists() and path.read_text() != content:
        raise InputError(f"{folder} is of another recipe; remove it, or choose another folder.")
    write_atomic(path, content.encode())
    take_back_cut_line(folder / "curve.jsonl")
    run = _started(recipe, folder)
    saved = time.monotonic()
    between = recipe.steps / recipe.keep
    with on_interrupt() as asked:
        while run.segments * recipe.segment < recipe.steps:
            before = run.segments * recipe.segment
            segment = run.segment()
            # a segment that is run again after a kill is there twice, with the same numbers but its time
            append_json_line(folder / "curve.jsonl", dataclasses.asdict(segment))
            if segment.steps // between > before // between:
                tensors: Any = _tensors(run.learner)
                np.savez(folder / "policies" / f"{segment.steps:08d}.npz", **tensors)
            if watch is not None:
                watch(segment)
            finished = segment.steps >= recipe.steps
            if time.monotonic() - saved > SAVE_SECONDS or finished or asked.is_set():
                run.save()
                saved = time.monotonic()
            if asked.is_set() and not finished:
                raise Interrupted(
                    f"stopped after {segment.steps} of {recipe.steps} steps; the work in {folder} can go on."
                )
    for stream in run.streams:
        stream.env.close()


def _train_one(recipes: Mapping[str, Recipe], work: Path, name: str) -> dict[str, Any]:
    """One of several trainings, as a job of a worker process; its result stays in its folder."""
    train(recipes[name], work / name)
    return {}


def train_all(
    recipes: Mapping[str, Recipe],
    work: Path,
    *,
    workers: int = 1,
    watch: Callable[[str, Mapping[str, Any]], None] | None = None,
    ended: Callable[[str], None] | None = None,
) -> None:
    """Train each recipe in the folder `work`/NAME, `workers` side by side in processes of one thread.

    watch(name, segment) hears how far each is, with a `Segment` as a mapping; ended(name) when one is done.
    """
    if workers == 1:
        for name, recipe in recipes.items():

            def heard(segment: Segment, name: str = name) -> None:
                if watch is not None:
                    watch(name, dataclasses.asdict(segment))

            train(recipe, work / name, heard)
            if ended is not None:
                ended(name)
        return
    with closing(run_jobs(partial(_train_one, recipes, work), tuple(recipes), workers=workers)) as answers:
        for answer in answers:
            for name in recipes if watch is not None else ():
                if segments := read_json_lines(work / name / "curve.jsonl"):
                    watch(name, segments[-1])  # type: ignore[misc]
            if answer is not None:
                name, row = answer
                if "failed" in row:
                    raise InputError(f"the training of {name} failed: {row['failed']}")
                if ended is not None:
                    ended(name)
