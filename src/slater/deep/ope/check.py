"""Can the learned model be trusted? Logged episodes, played again in it.

The actions of a logged episode are given to every network of the model, from the episode's first
observation on; what the networks say of its reward and costs is added up and compared with the log. No
simulator is needed, and no data are held out: the model has seen these steps, one at a time, but never
its own errors adding up over an episode, nor the noise of that episode. In noisy dynamics, or where
observations hide the state, the same actions lead elsewhere, and the sums show it.

Nothing of training depends on this: the episodes are chosen with a seed of their own. The output does: a
model that cannot be trusted does not choose the mixture where there is a fallback
(`slater.deep.algorithms.pdca.fallback`).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.nets.mlp import MLP
from slater.deep.ope.model import DynamicsModel
from slater.deep.task import Task, normalised, scaled_actions

__all__ = ["MOST_EPISODES", "TRUST", "check_model", "replay"]

F64 = NDArray[np.float64]
#: logged episodes that are played again at most
MOST_EPISODES = 256
#: largest share of the spread between episodes (or of half a limit, if that is more), as mean squares, that
#: a model's error may make up: beyond it the model's sums tell less than the spread leaves to guess
TRUST = 0.5
#: share of the variance of the reward between episodes that a model must explain: its bias is the same for
#: all policies and does no harm to a choice among them
LEAST_EXPLAINED = 1.0 / 3.0
#: errors of the reward that spread by less than this share of its mean do no harm, however alike episodes are
HARMLESS_REWARD = 0.25


def check_model(
    task: Task, model: DynamicsModel, dataset: Dataset | StoredDataset
) -> tuple[dict[str, Any], str | None]:
    """Figures per utility as JSON, `trusted`, and a sentence of warning if the model cannot be trusted.

    Figures are of episode sums in the data's units: their mean and standard deviation in the log, the
    model's bias (mean of prediction less log), its root mean square error, and the explained variance
    (None where all episodes have the same sum). A cost must be right to within `TRUST`. Of the reward the
    model must explain a third of the variance: one that explains little prefers policies by their luck in
    it, and those are the ones that leave the data.
    """
    logged, predicted = replay(task, model, dataset)
    # an error that is small beside the limit does no harm, however alike the episodes are
    harmless = np.append(0.0, 0.5 * task.units.thresholds(task.limits, "episode"))
    figures: dict[str, Any] = {}
    doubts: list[str] = []
    for u, name in enumerate(("reward", *task.cost_names)):
        true, error = logged[:, u], predicted[:, u] - logged[:, u]
        spread, bias, mean_square = float(true.std()), float(error.mean()), float(np.mean(error**2))
        varies = spread > 1e-6 * (1.0 + float(np.abs(true).max()))
        explained = float(1.0 - error.var() / spread**2) if varies else None
        figures[name] = {
            "logged_mean": float(true.mean()), "logged_std": spread, "bias": bias,
            "error": mean_square**0.5, "explained_variance": explained,
        }  # fmt: skip
        if u == 0:
            told = explained is None or explained >= LEAST_EXPLAINED
            doubtful = not told and float(error.std()) > HARMLESS_REWARD * abs(float(true.mean()))
        else:
            doubtful = mean_square > TRUST * max(spread, harmless[u]) ** 2
        if doubtful:
            share = "nothing" if explained is None else f"{max(explained, 0.0):.0%} of the variance"
            what = name if u == 0 else f"cost {name}"
            doubts.append(
                f"{share} of the {what} per episode (bias {bias:+.3g}, logged mean {true.mean():.3g})"
            )
    warning = None
    if doubts:
        warning = (
            f"the model, given the actions of {len(logged)} logged episodes, explains {' and '.join(doubts)};"
            " its estimates cannot be trusted: train with the preset fqe, which needs no model."
        )
    return {"episodes": len(logged), "trusted": not doubts, "utilities": figures}, warning


def replay(task: Task, model: DynamicsModel, dataset: Dataset | StoredDataset) -> tuple[F64, F64]:
    """Sums of every utility over logged episodes, and the model's for the same actions, each (E, 1+I).

    In the data's units; the model's are the mean over its networks. At most `MOST_EPISODES` episodes are
    taken, at random with a fixed seed.
    """
    count = len(dataset.episodes)
    chosen = np.random.default_rng(0).permutation(count)[:MOST_EPISODES]
    part = dataset.subset(np.sort(chosen))
    data = part.load() if isinstance(part, StoredDataset) else part
    table = data.episodes
    steps = np.arange(int(table.lengths.max()))
    inside = steps < table.lengths[:, None]
    rows = np.where(inside, table.starts[:, None] + steps, 0)
    actions = jnp.asarray(scaled_actions(data.actions, task)[rows])
    if task.discrete:
        actions = jax.nn.one_hot(actions, task.action_dim)
    first = jnp.asarray(normalised(data.initial_observations, task))
    sums = np.asarray(_sums(model, first, actions, jnp.asarray(inside, jnp.float32)), dtype=np.float64)
    logged = np.concatenate([table.returns[:, None], table.costs], axis=1)
    return logged, task.unscaled(sums)


@eqx.filter_jit
def _sums(model: DynamicsModel, first: Array, actions: Array, inside: Array) -> Array:
    """Predicted sums of scaled utilities, shape (E, 1+I): mean over networks.

    first: (E, obs_dim); actions: (E, T, action_dim); inside: (E, T), 1 for steps of the episode, else 0.
    """

    def one(network: MLP) -> Array:
        def step(
            carry: tuple[Array, Array, Array], now: tuple[Array, Array]
        ) -> tuple[tuple[Array, Array, Array], None]:
            (s, alive, total), (a, logged) = carry, now
            s, utilities, end = model.step(network, s, a)
            return (s, alive * (1.0 - end), total + (alive * logged)[:, None] * utilities), None

        start = (first, jnp.ones(len(first)), jnp.zeros((len(first), model.utility_low.shape[0])))
        (_, _, total), _ = jax.lax.scan(step, start, (jnp.moveaxis(actions, 1, 0), inside.T))
        return total

    return jnp.mean(jax.vmap(one)(model.networks), axis=0)
