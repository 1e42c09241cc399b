"""Marks that skip a test without its simulator, with the line that installs it as the reason."""

from importlib.util import find_spec

import pytest

from slater.envs import install

needs_bullet = pytest.mark.skipif(
    find_spec("pybullet") is None or find_spec("bullet_safety_gym") is None, reason=install.BULLET
)
needs_rwrl = pytest.mark.skipif(find_spec("dm_control") is None, reason=install.RWRL)
needs_gymnasium = pytest.mark.skipif(find_spec("gymnasium") is None, reason=install.GYMNASIUM)


def play(env, seed, steps, actions=None):
    """Every number of an episode: a list of (observation, reward, terminated, truncated, cost, costs)."""
    import numpy as np

    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    seen = [(observation.copy(), 0.0, False, False, info["cost"], tuple(info["costs"].values()))]
    for step in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape) if actions is None else actions(step)
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append(
            (observation.copy(), reward, terminated, truncated, info["cost"], tuple(info["costs"].values()))
        )
        if terminated or truncated:
            break
    return seen


def same_bits(one, other):
    import numpy as np

    return len(one) == len(other) and all(
        np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(one, other, strict=True)
    )
