"""Small datasets with continuous and with discrete actions, quick enough for every test."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from slater.data import Dataset, Metadata
from slater.policy import Policy

QUICK = {
    "steps": 60, "batch_size": 32, "hidden": (16, 16), "gamma": 0.9, "keep_every": 20,
}  # fmt: skip
#: the one short run of PDCA: on `pointmass()` under a limit of 5 per episode, compiled once for all tests
#: of the group "pdca", which run in one process
PDCA_PHASES = {"model_steps": 10, "joint_steps": 5}
PDCA_QUICK = {**QUICK, **PDCA_PHASES}


def _words(settings: dict[str, object]) -> list[str]:
    """A limit of 5 and settings as words of `slater train`."""
    texts = {k: "x".join(map(str, v)) if isinstance(v, tuple) else str(v) for k, v in settings.items()}
    return ["--limit", "5", *(word for name, text in texts.items() for word in ("--set", f"{name}={text}"))]


QUICK_WORDS, PDCA_WORDS = _words(QUICK), _words(PDCA_QUICK)


def _moved(position: np.ndarray, action: np.ndarray) -> np.ndarray:
    return 0.9 * position + 0.3 * action


def pointmass_values(policy: Policy, episodes: int, seed: int, length: int = 25) -> tuple[float, float]:
    """Mean return and mean first cost per episode of a policy with continuous actions, by simulation."""
    rng = np.random.default_rng(seed)
    actors = [policy.begin(rng=rng) for _ in range(episodes)]
    position, returns, costs = np.zeros(episodes), np.zeros(episodes), np.zeros(episodes)
    for _ in range(length):
        obs = np.stack([position, position**2], axis=1).astype(np.float32)
        position = _moved(position, np.array([actor.act(o)[0] for actor, o in zip(actors, obs, strict=True)]))
        returns += position + 0.1
        costs += position > 0.1
        for actor, reward, cost in zip(actors, position + 0.1, position > 0.1, strict=True):
            actor.observe(float(reward), np.array([float(cost)]))
    return float(returns.mean()), float(costs.mean())


def pointmass(
    episodes: int = 40, length: int = 25, costs: int = 1, seed: int = 0, discrete: bool = False,
    noise: float = 0.0,
) -> Dataset:  # fmt: skip
    """A point on a line: reward for moving right, cost i for being right of a mark; random actions.

    noise: standard deviation of what is added to every move.
    """
    rng = np.random.default_rng(seed)
    position = np.zeros(episodes)
    columns: dict[str, list[np.ndarray]] = {k: [] for k in ("obs", "act", "rew", "cost", "next")}
    for _ in range(length):
        index = rng.integers(3, size=episodes)
        action = index - 1.0 if discrete else rng.uniform(-1, 1, episodes)
        after = _moved(position, action)
        if noise > 0:
            after = after + rng.normal(0.0, noise, episodes)
        columns["obs"].append(np.stack([position, position**2], axis=1))
        columns["act"].append(index if discrete else np.stack([action, rng.uniform(-1, 1, episodes)], axis=1))
        columns["rew"].append(after + 0.1)
        columns["cost"].append(
            np.stack([(after > 0.1 * (i + 1)).astype(float) for i in range(costs)], axis=1)
        )
        columns["next"].append(np.stack([after, after**2], axis=1))
        position = after
    rows = {k: np.stack(v, axis=1).reshape(episodes * length, *v[0].shape[1:]) for k, v in columns.items()}
    ends = np.zeros((episodes, length), dtype=bool)
    ends[:, -1] = True
    return Dataset.from_arrays(
        observations=rows["obs"], actions=rows["act"], rewards=rows["rew"], costs=rows["cost"],
        terminals=np.zeros(len(rows["rew"]), dtype=bool), timeouts=ends.ravel(),
        next_observations=rows["next"],
        cost_names=[f"c{i}" for i in range(costs)],
        metadata=Metadata(horizon=length, num_actions=3 if discrete else None),
    )  # fmt: skip


#: How `write_own_log` names its columns, as words of a command.
OWN_COLUMNS = [
    "observations=place,square", "actions=push_a,push_b", "rewards=gain", "costs=wear", "episode=trip",
]  # fmt: skip


def write_own_log(data: Dataset, path: Path) -> None:
    """Episodes of 25 steps as a CSV with names of its own, which lacks one number in row 30."""
    lines = ["trip,place,square,push_a,push_b,gain,wear"]
    for row in range(data.size):
        values = [*data.observations[row], *data.actions[row], data.rewards[row], data.costs[row, 0]]
        texts = [repr(float(value)) for value in values]
        if row == 30:
            texts[1] = ""
        lines.append(f"trip {row // 25}," + ",".join(texts))
    path.write_text("\n".join(lines) + "\n")


class Preference(eqx.Module):
    """Stands for z: values of three actions, the same in every state; f is its reward part."""

    values: jax.Array

    def __call__(self, s, choice):
        return choice @ self.values

    def f(self, s, choice):
        return choice @ self.values
