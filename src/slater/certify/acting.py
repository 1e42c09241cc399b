"""How a policy is asked for actions where there is no episode around it: many states at once, no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianMixturePolicy, GaussianPolicy, Mixture

if TYPE_CHECKING:
    from slater.deep.task import Task

__all__ = ["Act", "acting", "chosen", "parts_of"]

#: raw observations (n, obs_dim) -> actions of the data's kind, (n, action_dim) or (n,) numbers
Act = Callable[[NDArray[Any]], NDArray[Any]]


def parts_of(policy: Any) -> list[tuple[float, Any]]:
    """The memoryless policies that a policy draws one of in every episode, with their shares."""
    if isinstance(policy, Mixture):
        shares = zip(policy.weights, policy.members, strict=True)
        return [(float(weight), member) for weight, member in shares if weight > 0]
    own = getattr(policy, "parts", None)  # an ONNX file that Slater wrote knows its members
    return list(own()) if callable(own) else [(1.0, policy)]


def acting(policy: Any, task: Task, rng: np.random.Generator) -> Act:
    """How a policy acts on raw observations; refused in a sentence where it cannot without an episode."""
    if isinstance(policy, GaussianPolicy | GaussianMixturePolicy | CategoricalPolicy):
        if policy.obs_mean.shape[0] != task.obs_dim:
            raise InputError(
                f"the policy takes observations of {policy.obs_mean.shape[0]} entries, but the data have "
                f"{task.obs_dim}."
            )
        if isinstance(policy, CategoricalPolicy) != task.discrete:
            raise InputError("the policy and the data disagree on whether actions are discrete.")
    if type(policy).__name__ in ("RememberingPolicy", "SequencePolicy", "SwitchingPolicy", "TableMixture"):
        raise InputError(
            f"a {type(policy).__name__} cannot be judged from the log alone, which needs a policy without "
            "memory over the data's observations; run it in a simulator or give its own logged episodes."
        )
    act = getattr(policy, "act", None)

    def act_checked(observations: NDArray[Any]) -> NDArray[Any]:
        try:
            actions = np.asarray(policy(observations) if act is None else act(observations, rng=rng))
        except InputError:
            raise
        except Exception as error:  # a user's function
            raise InputError(f"the policy raised {type(error).__name__}: {error}") from error
        wanted = (len(observations),) if task.discrete else (len(observations), task.action_dim)
        if actions.shape != wanted:
            raise InputError(
                f"for {len(observations)} observations the policy gave actions of shape {actions.shape}; "
                f"the data's would be {wanted}."
            )
        if actions.dtype.kind not in "iuf" or not np.isfinite(actions).all():
            raise InputError("the policy gave an action that is not a number.")
        whole = np.isin(actions, np.arange(task.action_dim)) if task.discrete else np.array(True)
        if not whole.all():
            raise InputError(
                f"the policy gave the action {actions[~whole][0]:g}, where the data have actions 0 to "
                f"{task.action_dim - 1}."
            )
        return actions

    return act_checked


def chosen(act: Act, task: Task) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """`act` from the task's normalised states (n, obs_dim) to the networks' actions (n, action_dim)."""
    from slater.deep.task import scaled_actions

    def choose(states: NDArray[Any]) -> NDArray[np.float32]:
        actions = act(np.asarray(states * task.obs_std + task.obs_mean, np.float32))
        if task.discrete:
            return np.eye(task.action_dim, dtype=np.float32)[actions.astype(np.int64)]
        return np.clip(scaled_actions(actions, task), -1.0, 1.0).astype(np.float32)

    return choose
