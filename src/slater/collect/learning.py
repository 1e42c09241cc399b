"""One SAC run in an environment: act, store, update; every episode is kept.

Whatever is drawn comes from (seed, number of the episode or of the round), and checkpoints are made where an
episode ends: a run that was stopped continues to the same bits. The replay memory holds all transitions so
far, which are also what `--keep-training` writes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from slater.collect import sac
from slater.collect.recorded import RecordedEpisodes
from slater.collect.sac import ReplayBatch, SACConfig, Task
from slater.deep import checkpoint
from slater.disk import write_atomic
from slater.envs import RandomPolicy, make
from slater.envs.constrained import ConstrainedEnv
from slater.envs.episode import Episode, RunSettings, run_episode
from slater.policy import CategoricalPolicy, GaussianPolicy

__all__ = ["Learned", "learn", "task_of"]

CHECKPOINT_STEPS = 10_000


@dataclass(frozen=True)
class Learned:
    """What a run leaves: its last policy, and its training episodes."""

    policy: GaussianPolicy | CategoricalPolicy
    rows: RecordedEpisodes


def task_of(env: ConstrainedEnv) -> Task:
    """The spaces of an environment, as the learner wants them."""
    space: Any = env.action_space
    obs_dim = int(env.observation_space.shape[0])  # type: ignore[index]  # `make` gives flat boxes
    if isinstance(space, gym.spaces.Discrete):
        return Task(obs_dim, int(space.n), None, None)
    return Task(obs_dim, int(space.shape[0]), tuple(map(float, space.low)), tuple(map(float, space.high)))


@dataclass
class _Learner:
    """The parts of a run in progress."""

    env: ConstrainedEnv
    penalty: NDArray[np.float64]
    config: SACConfig
    seed: int
    task: Task
    state: sac.Learner
    rows: RecordedEpisodes
    rounds: int = 0
    figures: NDArray[Any] = field(default_factory=lambda: np.zeros(3))

    def episode(self) -> Episode:
        """One training episode; the policy learns while it runs."""
        index = len(self.rows.episodes)
        settings = RunSettings(seed=self.seed, deterministic=False, discount=1.0, record=True)
        return run_episode(_Learning(self), self.env, index, settings)

    def learn(self) -> None:
        """A round of updates on the rows so far."""
        rng = np.random.default_rng([self.seed, self.rounds, 1])
        picked = rng.integers(len(self.rows), size=(self.config.round, self.config.batch_size))
        s, a, r, costs, terminal, s_next = self.rows.gather(picked)
        scaled = self.config.reward_scale * (r - costs @ self.penalty)
        if self.task.discrete:
            choice: Any = jax.nn.one_hot(a, self.task.action_dim)
        else:
            low, high = np.array(self.task.low), np.array(self.task.high)
            choice = 2.0 * (a - low) / (high - low) - 1.0
        batches = ReplayBatch(
            *(
                jnp.asarray(part, jnp.float32)
                for part in (s, choice, scaled, self.config.gamma * (1.0 - terminal), s_next)
            )
        )
        key = jax.random.fold_in(jax.random.key(self.seed), self.rounds + 1)
        self.state, figures = sac.updates(self.task, self.config, self.state, batches, key)
        self.figures = np.asarray(figures)
        self.rounds += 1


@dataclass(frozen=True)
class _Learning:
    """The learner as a policy, so that its episodes run like any other."""

    learner: _Learner

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        return sac.export(self.learner.task, self.learner.state.pi).act(
            observations, rng=rng, deterministic=deterministic
        )

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> _LearningActor:
        return _LearningActor(self.learner, rng)


class _LearningActor:
    """Acts, and calls for a round of updates whenever one is due."""

    def __init__(self, learner: _Learner, rng: np.random.Generator) -> None:
        self.learner, self.rng = learner, rng
        self.policy: Any = None
        self.steps = len(learner.rows)

    def act(self, observation: NDArray[Any]) -> NDArray[Any]:
        config = self.learner.config
        if self.steps >= config.start_steps and self.steps // config.update_every > self.learner.rounds:
            # Rows enter the memory when their episode ends; until then updates use the earlier ones.
            if len(self.learner.rows) >= config.batch_size:
                self.learner.learn()
            else:
                self.learner.rounds += 1
            self.policy = None
        if self.policy is None:
            self.policy = (
                RandomPolicy(self.learner.env.action_space)
                if self.steps < config.start_steps
                else sac.export(self.learner.task, self.learner.state.pi)
            )
        self.steps += 1
        action: NDArray[Any] = self.policy.act(np.asarray(observation)[None], rng=self.rng)[0]
        return action

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """The rows are taken from the finished episode."""


def learn(
    env_id: str,
    penalty: NDArray[np.float64],
    steps: int,
    seed: int,
    config: SACConfig,
    folder: Path,
    watch: Callable[[int, Episode, NDArray[Any]], None],
) -> Learned:
    """Train for at least `steps` steps (whole episodes), or go on from the checkpoint in `folder`.

    penalty: (I,) lambda, one per named cost of the environment. watch: told the steps so far, each finished
    episode, and critic loss, entropy and temperature.
    """
    env = make(env_id)
    task = task_of(env)
    learner = _Learner(
        env, penalty, config, seed, task, sac.init(task, config, jax.random.key(seed)), RecordedEpisodes()
    )
    _restore(learner, folder)
    saved = len(learner.rows)
    while len(learner.rows) < steps:
        episode = learner.episode()
        assert episode.transitions is not None
        learner.rows.append(episode.transitions, episode.terminated)
        watch(len(learner.rows), episode, learner.figures)
        if len(learner.rows) - saved >= CHECKPOINT_STEPS or len(learner.rows) >= steps:
            _save(learner, folder)
            saved = len(learner.rows)
    env.close()
    return Learned(sac.export(task, learner.state.pi), learner.rows)


def _save(learner: _Learner, folder: Path) -> None:
    """Rows first, then the checkpoint that names them: a kill between the two leaves the older pair."""
    name = f"rows-{len(learner.rows)}.npz"
    content = io.BytesIO()
    np.savez(content, **learner.rows.arrays())  # type: ignore[arg-type]
    write_atomic(folder / name, content.getvalue())
    checkpoint.save(folder / "sac.safetensors", learner.state, {"rounds": learner.rounds, "rows": name})
    for old in folder.glob("rows-*.npz"):
        if old.name != name:
            old.unlink()


def _restore(learner: _Learner, folder: Path) -> None:
    path = folder / "sac.safetensors"
    if not path.exists():
        return
    learner.state, record = checkpoint.restore(path, learner.state)
    learner.rounds = int(record["rounds"])
    with np.load(folder / record["rows"]) as arrays:
        learner.rows = RecordedEpisodes.from_arrays(dict(arrays))
