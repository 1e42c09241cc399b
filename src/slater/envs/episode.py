"""One episode of one policy, from one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError
from slater.policy import Policy

if TYPE_CHECKING:
    from slater.envs.constrained import ConstrainedEnv

#: An episode longer than this is taken for one that never ends.
STEP_CAP = 100_000


@dataclass(frozen=True)
class RunSettings:
    """What an episode depends on besides the policy, the environment and its own index."""

    seed: int
    deterministic: bool
    #: gamma of the discounted sums, in [0, 1]
    discount: float
    #: whether to keep every step
    record: bool = False


@dataclass(frozen=True)
class Transitions:
    """Every step of one episode, T of them, as datasets hold them.

    observations: (T+1, obs_dim) float32, the last one after the last step
    actions: (T, action_dim) float32 as the simulator took them, or (T,) int32 if discrete
    rewards: (T,) float32; cost: (T,) the scalar cost, costs: (T, I) the named ones, float32
    """

    observations: NDArray[np.float32]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    cost: NDArray[np.float32]
    costs: NDArray[np.float32]


@dataclass(frozen=True)
class Episode:
    """Sums over one episode. `cost` is the task's scalar cost; `costs` has shape `(I,)`.

    `transitions` is there if the run was asked to record.
    lowest, highest: (1+I,) the smallest and largest cost of a step, of the scalar cost and of the named ones;
    highest_at: (1+I,) the step of the largest.
    """

    index: int
    total_return: float
    discounted_return: float
    cost: float
    discounted_cost: float
    costs: NDArray[np.float64]
    discounted_costs: NDArray[np.float64]
    length: int
    terminated: bool
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    highest_at: NDArray[np.int64]
    transitions: Transitions | None = None


def _call_policy(what: str, index: int, step: int, function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"the policy's {what} raised {type(error).__name__} at step {step} of episode {index}: {reason}"
        ) from error


def _joined(seen: list[Any], taken: list[Any], brought: list[NDArray[np.float64]]) -> Transitions:
    """brought: of each step reward, scalar cost and named costs."""
    actions, gained = np.array(taken), np.array(brought, dtype=np.float32)
    return Transitions(
        observations=np.array(seen, dtype=np.float32),
        actions=actions.astype(np.int32 if actions.ndim == 1 else np.float32),
        rewards=gained[:, 0],
        cost=gained[:, 1],
        costs=gained[:, 2:],
    )


def is_scalar_cost(names: Sequence[str], known: Sequence[str]) -> bool:
    """Whether these costs of a log are the environment's scalar cost; a name that means nothing is refused.

    A lone cost of a log may have another name than in the environment, if that has no more than one; `cost`
    is the scalar one everywhere. known: names in the environment.
    """
    unknown = [name for name in names if name not in known]
    if not unknown:
        return False
    if len(names) == 1 and (len(known) <= 1 or names[0] == "cost"):
        return True
    raise InputError(f"the environment has no cost {unknown[0]!r}; it has {', '.join(known) or 'none'}.")


def _costs_for(actor: Any, known: tuple[str, ...]) -> Callable[[NDArray[Any], float], NDArray[Any]]:
    """What an actor is told of a step's costs (those of `known`, and the scalar one): its own, by name."""
    names = getattr(actor, "cost_names", None)
    if names is None:
        return lambda costs, scalar: costs
    if is_scalar_cost(names, known):
        return lambda costs, scalar: np.array([scalar])
    order = [known.index(name) for name in names]
    return lambda costs, scalar: costs[order]


def run_episode(policy: Policy, env: ConstrainedEnv, index: int, settings: RunSettings) -> Episode:
    """Run episode number `index`; it depends on `settings.seed` and `index`, not on other episodes."""
    environment_seed, policy_seed = np.random.SeedSequence(settings.seed, spawn_key=(index,)).spawn(2)
    rng = np.random.default_rng(policy_seed)
    observation, _ = env.reset(seed=int(environment_seed.generate_state(1)[0]))
    actor = _call_policy("begin", index, 0, policy.begin, rng=rng, deterministic=settings.deterministic)
    count = len(env.cost_names)
    # of the reward, the scalar cost and the named ones
    sums, discounted = np.zeros(2 + count), np.zeros(2 + count)
    lowest, highest = np.full(1 + count, np.inf), np.full(1 + count, -np.inf)
    highest_at = np.zeros(1 + count, dtype=np.int64)
    weight = 1.0
    told = _costs_for(actor, env.cost_names)
    seen, taken, gained = [observation], list[Any](), list[NDArray[np.float64]]()
    for step in range(STEP_CAP):
        action = _call_policy("act", index, step, actor.act, observation)
        try:
            action = env.take(action)
            observation, reward, terminated, truncated, info = env.step(action)
        except InputError as error:
            raise InputError(f"at step {step} of episode {index}, {error}") from error
        if not np.isfinite(reward):
            raise InputError(f"{env.env_id} gave the reward {reward} at step {step} of episode {index}.")
        brought = np.array([reward, info["cost"], *info["costs"].values()], dtype=np.float64)
        each, step_costs = brought[1:], brought[2:]
        lowest, highest_at = np.minimum(lowest, each), np.where(each > highest, step, highest_at)
        highest = np.maximum(highest, each)
        sums += brought
        discounted += weight * brought
        weight *= settings.discount
        if settings.record:
            seen.append(observation)
            taken.append(action)
            gained.append(brought)
        _call_policy("observe", index, step, actor.observe, reward, told(step_costs, info["cost"]))
        if terminated or truncated:
            return Episode(
                index=index,
                total_return=float(sums[0]),
                discounted_return=float(discounted[0]),
                cost=float(sums[1]),
                discounted_cost=float(discounted[1]),
                costs=sums[2:],
                discounted_costs=discounted[2:],
                length=step + 1,
                terminated=terminated,
                lowest=lowest,
                highest=highest,
                highest_at=highest_at,
                transitions=_joined(seen, taken, gained) if settings.record else None,
            )
    raise InputError(
        f"episode {index} of {env.env_id} did not end in {STEP_CAP} steps; give max_episode_steps."
    )
