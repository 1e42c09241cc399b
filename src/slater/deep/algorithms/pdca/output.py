"""What comes out of PDCA: the mixture of kept policies, and the certificate beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.deep.algorithms.base import Member
from slater.deep.algorithms.pdca.config import PDCAConfig
from slater.deep.batches import Data
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.fitted_q import FQE
from slater.deep.ope.model import DynamicsModel, careful_values
from slater.deep.task import Task
from slater.mixing import select

__all__ = ["aim", "cautious", "certificate", "chosen_mixture"]

#: a careful estimate of a policy: J of every utility by several networks, shape (M, 1+I)
Careful = Callable[[PolicyNetwork, Array], Any]


def aim(config: PDCAConfig, task: Task) -> Array:
    """The limits to aim at, shape (I,): tau less the margin."""
    return jnp.asarray(task.tau * (1.0 - config.margin))


def cautious(copies: Array) -> Array:
    """One estimate per utility, shape (1+I,), from several, shape (M, 1+I): mean reward, largest cost."""
    return jnp.append(jnp.mean(copies[:, 0]), jnp.max(copies[:, 1:], axis=0))


def chosen_mixture(
    config: PDCAConfig, task: Task, model: DynamicsModel | None, data: Data,
    members: Sequence[Member], policies: Sequence[PolicyNetwork], key: Array,
    tick: Callable[[str, int, int], None],
) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
    """Weights over the members by the linear program, on careful estimates: of a model, else of FQE."""
    if model is not None:
        careful, most = careful_values(task, model, data), len(members)
    else:
        careful, most = _careful_fqe(config, task, data, tick), config.select_limit

    def refine(index: int) -> NDArray[np.float64]:
        copies = careful(policies[index], jax.random.fold_in(key, members[index].step))
        tick(f"policy of step {members[index].step}", 1, 1)
        return np.asarray(cautious(jnp.asarray(copies)), dtype=np.float64)

    # a member without an estimate (the fallback, of which a model's run has one) is refined like all others
    unknown = np.zeros(1 + task.costs)
    quick = np.array([m.estimates or unknown for m in members], dtype=np.float64)
    weights, used, refined = select(quick, np.asarray(aim(config, task), np.float64), refine, most)
    better = [replace(m, estimates=tuple(used[k]), careful=k in refined) for k, m in enumerate(members)]
    return weights, better


def _careful_fqe(
    config: PDCAConfig, task: Task, data: Data, tick: Callable[[str, int, int], None]
) -> Careful:
    """FQE from scratch."""
    fqe = FQE(
        task, data, steps=config.select_steps, batch_size=config.batch_size, hidden=config.hidden,
        learning_rate=config.eta_fast, polyak_rate=config.ope_polyak, deflation=config.deflation,
        copies=config.select_copies, layer_norm=config.layer_norm,
    )  # fmt: skip
    return lambda policy, key: fqe(policy, key, lambda done: tick("FQE of a policy", done, fqe.steps))


def certificate(
    config: PDCAConfig, task: Task, lam_mean: Array, members: Sequence[Member],
    weights: NDArray[np.float64],
) -> dict[str, Any]:  # fmt: skip
    """Multipliers, slack, and an offline estimate of the duality gap, all in the data's units.

        gap = max_pi [J_R - lam_bar.J_C](pi) + lam_bar.tau - [J_R - B max_i (J_Ci - tau_i)_+](mixture)

    with the members' estimates for J, and the best of the kept policies for the maximum over all: an
    estimate from below, honest only as far as those policies and their estimates are.
    """
    names, lam = task.cost_names, np.asarray(lam_mean, dtype=np.float64)
    rate = task.scale[1:] / task.scale[0]
    answer: dict[str, Any] = {"lambda_mean": dict(zip(names, (lam * rate).tolist(), strict=True))}
    if all(member.estimates is not None for member in members):
        J = np.array([member.estimates for member in members])
        tau = task.tau.astype(np.float64)
        mixed = weights @ J
        upper = float(np.max(J[:, 0] - J[:, 1:] @ lam) + lam @ tau)
        lower = float(mixed[0] - config.B * max(np.max(mixed[1:] - tau), 0.0))
        slack = (tau - mixed[1:]) / task.scale[1:]
        answer["slack"] = dict(zip(names, slack.tolist(), strict=True))
        answer["duality_gap_estimate"] = (upper - lower) / float(task.scale[0])
    return answer
