"""Rollouts while a run trains: a few episodes of the present policy, as numbers for the metrics."""

from __future__ import annotations

from collections.abc import Sequence

from slater.policy import Policy

__all__ = ["quick_evaluation"]


def quick_evaluation(
    policy: Policy, env: str, episodes: int, seed: int, costs: Sequence[str]
) -> dict[str, float]:
    """Mean undiscounted return and cost per episode, as `eval/return`, `eval/cost` and `eval/NAME`."""
    from slater.envs import rollout

    result = rollout(policy, env, episodes=episodes, seed=seed)
    row = {"eval/return": float(result.returns.mean()), "eval/cost": float(result.cost.mean())}
    for i, name in enumerate(result.cost_names):
        if name in costs:
            row[f"eval/{name}"] = float(result.costs[:, i].mean())
    return row
