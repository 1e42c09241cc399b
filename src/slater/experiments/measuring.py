"""What a trained policy is worth in the simulator, for a cell of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slater.errors import InputError
from slater.policy import Policy, parts_of


def measure(
    policy: Policy, env: str, *, episodes: int, seed: int, deterministic: bool, discount: float
) -> dict[str, float]:
    """Mean episode sums of a policy; of a mixture, the weighted mean over members, `episodes` of each.

    That is the paper's way: every kept policy is run for 20 episodes and the results are averaged. It is an
    unbiased measurement of the mixture with less noise than drawing members. Standard errors `*_se` are
    those of the episodes, not of seeds. `members`: how many policies were run.
    """
    from slater.envs import rollout

    parts = parts_of(policy)
    names = ("return", "cost", "discounted_return", "discounted_cost")
    means, errors = np.zeros(len(names)), np.zeros(len(names))
    for index, (weight, member) in enumerate(parts):
        # other episodes for each member: then the errors of the members are independent
        ran = rollout(
            member, env, episodes=episodes, seed=seed + 10_000 * index, deterministic=deterministic,
            discount=discount,
        )  # fmt: skip
        values = np.stack([ran.quantities()[name] for name in names])
        means += weight * values.mean(axis=1)
        if episodes > 1:
            errors += weight**2 * values.var(axis=1, ddof=1) / episodes
    answer = {name: float(mean) for name, mean in zip(names, means, strict=True)}
    answer |= {f"{name}_se": float(error) for name, error in zip(names, np.sqrt(errors), strict=True)}
    return answer | {"members": len(parts)}


def scores(env: str, measured: Mapping[str, float], limit: float) -> dict[str, float | None]:
    """DSRL's scores where it has constants; a cost over its limit always."""
    from slater.envs.scores import dsrl_scores

    found = dsrl_scores(env, measured["return"], measured["cost"], limit)
    if found is not None:
        return {"normalised_reward": found.reward, "normalised_cost": found.cost}
    return {"normalised_reward": None, "normalised_cost": measured["cost"] / limit if limit > 0 else None}


def per_episode(text: str, horizon: int) -> float:
    """A limit per episode or per step as a sum over an episode; others depend on the discount."""
    from slater.limits import Limit, Units

    limit = Limit.parse(text)
    if limit.unit == "discounted":
        raise InputError(f"the limit {text} must be per episode or per step here, as 20 or 0.05/step.")
    return Units(gamma=0.0, horizon=horizon).episode(limit)
