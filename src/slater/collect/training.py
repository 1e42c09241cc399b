"""Training the behaviours of a task: one SAC run whose penalty moves until one limit after another binds.

The run begins with R alone. Then it goes through a list of cost targets, from the loosest to the strictest:
while the episodes cost more than the target the penalty lambda of R - lambda C grows, while they cost less
it falls. The policy is kept at regular intervals, so that the run leaves bad, middling and good policies on
both sides of every limit: DSRL's data were made in the same manner, with a limit that moves during training.

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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from slater.collect import penalised_sac as sac
from slater.collect.behaviour import Behaviour, behaviour_of_training
from slater.collect.penalised_sac import LearnerConfig
from slater.collect.sac import Task, export
from slater.deep import checkpoint
from slater.deep.engine.training import Interrupted
from slater.disk import append_json_line, write_atomic
from slater.envs import make
from slater.envs.constrained import ConstrainedEnv
from slater.errors import InputError
from slater.interrupts import on_interrupt
from slater.policy import GaussianPolicy

__all__ = ["Recipe", "Segment", "finished_behaviour", "train"]

#: seconds between checkpoints
SAVE_SECONDS = 60.0
#: the first penalty, as a share of the reward per step that the policy earns without one
FIRST_PENALTY = 0.3


@dataclass(frozen=True)
class Recipe:
    """How the behaviours of a task are trained; the same recipe gives the same policies, on the same machine.

    env_id: an environment with one cost; horizon: steps of its longest episode
    steps: of the whole run, over all environments; free: the share of them without a penalty
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
    config: LearnerConfig = field(default_factory=LearnerConfig)

    def __post_init__(self) -> None:
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
        if begun < 0 or not self.targets:
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
    penalty: float
    target: float | None
    episodes: int
    mean_return: float
    mean_cost: float
    mean_length: float
    processor_seconds: float


class _Memory:
    """Transitions in one packed float32 array: s, a, r, c, discount, s'."""

    def __init__(self, obs_dim: int, action_dim: int) -> None:
        self.cuts = np.cumsum([obs_dim, action_dim, 1, 1, 1])
        self.rows = np.empty((1024, int(self.cuts[-1]) + obs_dim), np.float32)
        self.size = 0

    def append(self, rows: list[NDArray[Any]]) -> None:
        while self.size + len(rows) > len(self.rows):
            self.rows = np.concatenate([self.rows, np.empty_like(self.rows)])
        if rows:
            self.rows[self.size : self.size + len(rows)] = rows
        self.size += len(rows)

    def draw(self, count: int, batch_size: int, rng: np.random.Generator) -> sac.NStepBatch:
        picked = self.rows.take(rng.integers(self.size, size=(count, batch_size)), axis=0)
        s, a, r, c, discount, s_next = np.split(picked, self.cuts, axis=-1)
        return sac.NStepBatch(s, a, r[..., 0], c[..., 0], discount[..., 0], s_next)  # type: ignore[arg-type]


class _Stream:
    """One environment: its running episode, and the rows that wait for their returns of several steps."""

    def __init__(self, env: ConstrainedEnv, config: LearnerConfig) -> None:
        self.env, self.config = env, config
        self.space: Any = env.action_space
        self.waiting: deque[tuple[NDArray[Any], NDArray[Any], float, float]] = deque()
        self.ended: list[tuple[float, float, int]] = []

    def begin(self, seed: list[int]) -> None:
        self.seed, self.count = seed, 0
        self.ended = []
        self.waiting.clear()
        self._reset()

    def _reset(self) -> None:
        drawn = np.random.SeedSequence([*self.seed, self.count]).generate_state(1)[0]
        self.observation = np.asarray(self.env.reset(seed=int(drawn))[0], np.float32)
        self.sums = np.zeros(3)
        self.count += 1

    def step(self, action: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Take `action`, in [-1, 1]; the rows that are complete now."""
        low, high = self.space.low, self.space.high
        observation, reward, terminated, truncated, info = self.env.step(
            low + (action + 1.0) * 0.5 * (high - low)
        )
        after = np.asarray(observation, np.float32)
        self.sums += np.array([reward, info["cost"], 1.0])
        self.waiting.append((self.observation, action, reward, info["cost"]))
        self.observation = after
        rows = []
        if len(self.waiting) == self.config.returns_over:
            rows.append(self._oldest(after, terminated))
        if terminated or truncated:
            while self.waiting:
                rows.append(self._oldest(after, terminated))
            self.ended.append((self.sums[0], self.sums[1], int(self.sums[2])))
            self._reset()
        return rows

    def _oldest(self, last: NDArray[Any], terminated: bool) -> NDArray[Any]:
        gamma = self.config.gamma
        reward = sum(gamma**k * row[2] for k, row in enumerate(self.waiting))
        cost = sum(gamma**k * row[3] for k, row in enumerate(self.waiting))
        discount = 0.0 if terminated else gamma ** len(self.waiting)
        observation, action, *_ = self.waiting.popleft()
        return np.concatenate([observation, action, [reward, cost, discount], last])


@dataclass
class _Run:
    """The parts of a run in progress."""

    recipe: Recipe
    folder: Path
    learner: sac.Learner
    memory: _Memory
    streams: list[_Stream]
    segments: int = 0
    saved_rows: int = 0
    log_penalty: float | None = None
    reward_rate: float = 0.0
    seconds: float = 0.0

    def policy(self) -> GaussianPolicy:
        """The policy so far in NumPy, for actions in [-1, 1]."""
        obs_dim, width = self.learner.pi.mlp.weights[0].shape[0], len(self.streams[0].space.low)
        policy = export(Task(obs_dim, width, (-1.0,) * width, (1.0,) * width), self.learner.pi)
        assert isinstance(policy, GaussianPolicy)
        return policy

    def segment(self) -> Segment:
        """Act and learn for one segment."""
        recipe, config = self.recipe, self.recipe.config
        begun = time.process_time()
        rng = np.random.default_rng([recipe.seed, self.segments, 0])
        key = jax.random.fold_in(jax.random.key(recipe.seed), self.segments)
        steps = self.segments * recipe.segment
        target = recipe.target(steps)
        penalty = 0.0 if self.log_penalty is None else math.exp(self.log_penalty)
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
                    config, len(self.streams[0].space.low), self.learner, batches, jnp.float32(penalty),
                    jax.random.fold_in(key, tick),
                )  # fmt: skip
                policy = self.policy()
            if here < recipe.start_steps:
                actions = rng.uniform(-1.0, 1.0, (len(self.streams), len(policy.low))).astype(np.float32)
            else:
                actions = policy.act(np.stack([stream.observation for stream in self.streams]), rng=rng)
            for stream, action in zip(self.streams, actions, strict=True):
                self.memory.append(stream.step(action))
        self.segments += 1
        self.seconds += time.process_time() - begun
        ended = np.array([episode for stream in self.streams for episode in stream.ended])
        means = ended.mean(axis=0) if len(ended) else np.full(3, np.nan)
        done = self.segments * recipe.segment
        self._move_penalty(recipe.target(done), means)
        total, cost, length = map(float, means)
        return Segment(
            self.segments, done, penalty, target, len(ended), total, cost, length, self.seconds
        )  # fmt: skip

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
    streams = [_Stream(make(recipe.env_id), recipe.config) for _ in range(recipe.environments)]
    env = streams[0].env
    if len(env.cost_names) != 1 or not hasattr(env.action_space, "low"):
        raise InputError(
            f"{recipe.env_id} must have one cost and continuous actions to train behaviours in it."
        )
    obs_dim, action_dim = env.observation_space.shape[0], env.action_space.shape[0]  # type: ignore[index]
    learner = sac.init(obs_dim, action_dim, recipe.config, jax.random.key(recipe.seed))
    run = _Run(recipe, folder, learner, _Memory(obs_dim, action_dim), streams)
    run.restore()
    saved = time.monotonic()
    between = recipe.steps / recipe.keep
    with on_interrupt() as asked:
        while run.segments * recipe.segment < recipe.steps:
            before = run.segments * recipe.segment
            segment = run.segment()
            # a segment that is run again after a kill is there twice, with the same numbers but its time
            append_json_line(folder / "curve.jsonl", dataclasses.asdict(segment))
            if segment.steps // between > before // between:
                tensors = {f"w{k}": np.asarray(w) for k, w in enumerate(run.learner.pi.mlp.weights)}
                tensors |= {f"b{k}": np.asarray(b) for k, b in enumerate(run.learner.pi.mlp.biases)}
                np.savez(folder / "policies" / f"{segment.steps:08d}.npz", **tensors)  # type: ignore[arg-type]
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
    for stream in streams:
        stream.env.close()


def finished_behaviour(
    recipe: Recipe, folder: Path, limits: Sequence[float], *, so_far: bool = False
) -> Behaviour:
    """The behaviour of a finished training in `folder` (so_far: of an unfinished one too).

    limits: costs per episode; the file has policies on both sides of each, where the training found any.
    """
    env = make(recipe.env_id)
    space: Any = env.action_space
    env.close()
    bounds = space.low.astype(np.float32), space.high.astype(np.float32)
    return behaviour_of_training(folder, limits, *bounds, so_far=so_far)
