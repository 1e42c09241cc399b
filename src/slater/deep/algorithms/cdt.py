"""CDT, the constrained decision transformer (Liu et al. 2023): cloning, conditioned on what is to come.

Tokens R_t, C_t, s_t, a_t (`slater.deep.nets.transformer`): undiscounted return and costs from t to the end.
The output at s_t gives the distribution of a_t, the output at a_t the costs of the step:

    loss    -E[ log p(a_t | history, R_t, C_t, s_t) + beta H(p) ] + w_c CE(cost_t | ..., a_t)
    beta    minimises beta (H(p) - target entropy), beta >= 0: the entropy stays at its target or above

log p and H are sums over action dimensions, and so is the target, -dim A (released code compares means
with it). CE is the binary cross-entropy of each cost over its largest value, which for a cost of 0 or 1
is the 2-class softmax of released code. Episodes are drawn by cost, and a share of them relabelled beyond
the frontier (`slater.deep.algorithms.frontier`); an episode that the data does not end has no return to go,
so it is left out.

Acting starts with the limits as C_0 and a return R_0 taken from the data (`targets = "data"`): a quantile
of the returns of those episodes that keep the limits. One model serves all limits: `slater evaluate RUN
--limit N`, or `with_limits` of the policy. The preset `released` takes R_0 from OSRL's hand-made table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Config, fit_preparation
from slater.deep.algorithms.cdt_config import CDTConfig, released_targets
from slater.deep.algorithms.frontier import relabel, sampling_weights
from slater.deep.algorithms.registry import register
from slater.deep.batches import Data
from slater.deep.nets.mlp import descend
from slater.deep.nets.transformer import Transformer
from slater.deep.task import Task, scaled_actions
from slater.errors import InputError
from slater.policy.sequence import SequencePolicy, Targets

F64 = NDArray[np.float64]


class Sequences(NamedTuple):
    """Episodes on the device: N rows, V views of them (an episode, or one relabelled).

    togo: (N, 1+I) raw return and costs to go; costs: (N, I) of the step, over their largest value
    start, length: (V,) rows of a view; shift: (V, 1+I) added to its togo; cumulative: (V,) of its weights
    spare: (V, I) what a view's costs leave of the largest of any view
    centre, spread: (1+I,) a token is (togo - centre) / spread
    """

    obs: Array
    actions: Array
    togo: Array
    costs: Array
    start: Array
    length: Array
    shift: Array
    spare: Array
    cumulative: Array
    centre: Array
    spread: Array


class Contexts(NamedTuple):
    """A minibatch of contexts, `(batch, context, ...)`; `valid` is False in the padding on the right."""

    togo: Array
    obs: Array
    action: Array
    time: Array
    costs: Array
    valid: Array


class CDTNetwork(eqx.Module):
    """The transformer with its heads, and how to start an episode."""

    trunk: Transformer
    action_weight: Array
    action_bias: Array
    cost_weight: Array
    cost_bias: Array
    discrete: bool = eqx.field(static=True)
    targets: Targets | None = eqx.field(static=True)
    context: int = eqx.field(static=True)
    jump: int = eqx.field(static=True)
    log_std_range: tuple[float, float] = eqx.field(static=True, default=(-5.0, 2.0))

    def heads(self, batch: Contexts, key: Array | None) -> tuple[Array, Array]:
        """Action outputs (logits, or mean and log std) and cost logits, `(batch, context, .)`."""
        out = self.trunk(batch.togo, batch.obs, batch.action, batch.time, key)
        return (
            out[:, :, 0] @ self.action_weight + self.action_bias,
            out[:, :, 1] @ self.cost_weight + self.cost_bias,
        )

    def log_prob_and_entropy(self, outputs: Array, action: Array) -> tuple[Array, Array]:
        """Log p(a) of the Gaussian, not squashed, and entropy H(p), in nats, `(batch, context)`."""
        if self.discrete:
            log_p = jax.nn.log_softmax(outputs, axis=-1)
            return jnp.sum(log_p * action, axis=-1), -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        log_std = jnp.clip(log_std, *self.log_std_range)
        half_log = 0.5 * jnp.log(2.0 * jnp.pi)
        normal = -0.5 * ((action - mean) * jnp.exp(-log_std)) ** 2 - log_std - half_log
        return jnp.sum(normal, axis=-1), jnp.sum(log_std + 0.5 + half_log, axis=-1)

    def export(self, task: Task) -> SequencePolicy:
        """The same model in NumPy, aiming at the problem's limits."""
        assert self.targets is not None, "the algorithm was not `informed`"
        arrays = {"action_weight": self.action_weight, "action_bias": self.action_bias}
        for name in ("return_weight", "cost_weight", "obs_weight", "action_weight", "token_bias", "time",
                     "norm_in", "norm_out"):  # fmt: skip
            arrays[f"embed.{name}"] = getattr(self.trunk, name)
        for index, block in enumerate(self.trunk.blocks):
            fields = {k: v for k, v in vars(block).items() if k != "heads"}
            arrays |= {f"blocks.{index}.{name}": value for name, value in fields.items()}
        return SequencePolicy(
            arrays={name: np.asarray(value) for name, value in arrays.items()},
            heads=self.trunk.blocks[0].heads, context=self.context, jump=self.jump,
            obs_mean=task.obs_mean, obs_std=task.obs_std,
            low=task.action_low, high=task.action_high, log_std_range=self.log_std_range,
            targets=self.targets,
            # rounded, so that a limit given in another unit is the same one
            limits=task.units.thresholds(task.limits, "episode").astype(np.float32),
            cost_names=task.cost_names,
        )  # fmt: skip


class CDTState(eqx.Module):
    """The network, log beta, and their optimisers."""

    net: CDTNetwork
    log_beta: Array
    opt: Any
    opt_beta: Any


class Views(NamedTuple):
    """Complete episodes, and relabelled ones after them, as `togo` of the data's rows plus a shift each.

    togo: (N, 1+I) what is to go at every row; episode, shift, label_costs: per view its episode, (1+I) and
    (I,); returns, costs: of the complete episodes; centre, spread, least, most: (1+I,) of what is to go
    """

    togo: F64
    episode: NDArray[np.int64]
    shift: F64
    returns: F64
    costs: F64
    label_costs: F64
    centre: F64
    spread: F64
    least: F64
    most: F64


@register
class CDT(Algorithm[CDTConfig, CDTState]):
    """See the module's text."""

    name: ClassVar[str] = "cdt"
    label: ClassVar[str] = "CDT"
    published_as: ClassVar[str | None] = "CDT"
    serves_all_limits: ClassVar[bool] = True
    acts_likeliest: ClassVar[bool] = True
    Config: ClassVar[type[Config]] = CDTConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "steps": 100_000, "batch_size": 2048, "learning_rate": 1e-4, "cost_cap": 70.0,
            "inputs": "released", "targets": "released", "clip_targets": False, "jump": 1,
            "normalise_observations": False,
        }
    }  # fmt: skip

    def __init__(self, config: CDTConfig, targets: Targets | None = None) -> None:
        """`targets`: what policies ask for, from the data (`informed`)."""
        super().__init__(config)
        self.targets = targets
        rate: float | optax.Schedule = config.learning_rate
        if config.warmup > 0:  # a schedule of length 0 would stay at 0
            rate = optax.linear_schedule(0.0, config.learning_rate, config.warmup)
        self.adam = optax.chain(
            optax.clip_by_global_norm(config.clip), optax.adamw(rate, weight_decay=config.weight_decay)
        )
        self.adam_beta = optax.adam(config.entropy_rate)

    # -- the data -----------------------------------------------------------------------------------------

    def config_for(self, dataset: Dataset | StoredDataset) -> CDTConfig:
        """A short run has a shorter warm-up."""
        return replace(self.config, warmup=fit_preparation(self.config.warmup, self.config.steps))

    def check(self, dataset: Dataset | StoredDataset) -> None:
        """Episodes must end: what is still to come is what the model is told."""
        super().check(dataset)
        judged = dataset.episodes.judged
        if not judged.any():
            raise InputError(
                "cdt needs the returns of whole episodes; no episode of this data ends, or all were cut off "
                "before half the horizon."
            )
        if self.config.cost_cap is not None:
            cheapest = dataset.episodes.costs_per_episode[judged].max(axis=1).min()
            if cheapest >= self.config.cost_cap:
                raise InputError(
                    f"no episode costs less than cost_cap = {self.config.cost_cap:g}; "
                    f"the cheapest costs {cheapest:g}: raise cost_cap, or give none."
                )
        if self.config.targets == "released":
            released_targets(dataset)

    def informed(self, dataset: Dataset, task: Task) -> CDT:
        """With the targets of the data's episodes."""
        config, views = self.config, self._views(dataset, task)
        return CDT(
            config,
            Targets(
                episodes=np.concatenate([views.returns[:, None], views.costs], axis=1).astype(np.float32),
                quantile=config.target_quantile,
                table=released_targets(dataset) if config.targets == "released" else None,
                centre=views.centre.astype(np.float32), spread=views.spread.astype(np.float32),
                least=views.least.astype(np.float32) if config.clip_targets else None,
                most=views.most.astype(np.float32) if config.clip_targets else None,
            ),
        )  # fmt: skip

    def _views(self, dataset: Dataset, task: Task) -> Views:
        """Judged episodes with what is to go at each step, and relabelled ones.

        What is to go after an episode was cut off is taken at its own rate, up to the horizon.
        """
        config, table = self.config, dataset.episodes
        kept, cut_off = np.flatnonzero(table.judged), table.cut_off
        utilities = np.concatenate([dataset.rewards[:, None], dataset.costs], axis=1).astype(np.float64)
        togo = np.zeros_like(utilities)
        for e in kept:
            rows = slice(table.starts[e], table.stops[e])
            togo[rows] = np.cumsum(utilities[rows][::-1], axis=0)[::-1]
            if cut_off[e]:
                togo[rows] += utilities[rows].mean(axis=0) * (table.horizon - table.lengths[e])
        inside = np.concatenate([np.arange(table.starts[e], table.stops[e]) for e in kept])
        returns, costs = table.returns_per_episode[kept], table.costs_per_episode[kept]
        # the relabelled episodes are part of the data: the same for every seed
        extra = relabel(
            returns, costs, share=config.augment, headroom=config.headroom, decrease=config.decrease,
            rng=np.random.default_rng(0),
        )  # fmt: skip
        views = np.concatenate([np.arange(len(kept)), extra.episode])
        shift = np.concatenate([np.zeros((len(kept), 1 + task.costs)), extra.shift])
        centre, spread = togo[inside].mean(axis=0), togo[inside].std(axis=0)
        spread = np.where(spread > 1e-6, spread, 1.0)
        if config.inputs == "released":
            centre, spread = np.append(0.0, np.full(task.costs, 50.0)), np.ones(1 + task.costs)
            spread[0], spread[1:] = 10.0, -1.0
        starts = togo[table.starts[kept]]  # what is to go is largest at a start, relabelled ones included
        largest = np.maximum(togo[inside].max(axis=0), (starts[views] + shift).max(axis=0))
        return Views(
            togo=togo, episode=kept[views], shift=shift, returns=returns, costs=costs,
            label_costs=costs[views] + shift[:, 1:], centre=centre, spread=spread,
            least=togo[inside].min(axis=0), most=largest,
        )  # fmt: skip

    def data(self, dataset: Dataset, task: Task, data: Data) -> Sequences:
        """Judged episodes with what is to go at each step, relabelled ones, and the weights to draw by."""
        config, table, views = self.config, dataset.episodes, self._views(dataset, task)
        weights = sampling_weights(views.label_costs, config.cost_sampling, config.cost_cap)
        f32 = jnp.float32
        return Sequences(
            obs=jnp.asarray((dataset.observations - task.obs_mean) / task.obs_std),
            actions=jnp.asarray(scaled_actions(dataset.actions, task)),
            togo=jnp.asarray(views.togo, f32), costs=jnp.asarray(dataset.costs * task.scale[1:], f32),
            start=jnp.asarray(table.starts[views.episode]), length=jnp.asarray(table.lengths[views.episode]),
            shift=jnp.asarray(views.shift, f32), cumulative=jnp.asarray(np.cumsum(weights), f32),
            spare=jnp.asarray(views.label_costs.max(axis=0) - views.label_costs, f32),
            centre=jnp.asarray(views.centre, f32), spread=jnp.asarray(views.spread, f32),
        )  # fmt: skip

    def draw(self, task: Task, data: Sequences, key: Array) -> Contexts:
        """Contexts: a view by its weight, a start uniform in it, and what follows."""
        key_view, key_start = jax.random.split(key)
        size, context = self.config.batch_size, self.config.context
        uniform = jax.random.uniform(key_view, (size,)) * data.cumulative[-1]
        view = jnp.minimum(jnp.searchsorted(data.cumulative, uniform, side="right"), len(data.start) - 1)
        length = data.length[view][:, None]
        first = jax.random.randint(key_start, (size, 1), 0, length)
        time = first + jnp.arange(context)
        rows = data.start[view][:, None] + jnp.minimum(time, length - 1)
        raw = data.togo[rows] + data.shift[view][:, None]
        if self.config.costs_to_go == "budget":  # C_t = limit - spent, for a limit that the view keeps
            rest = jax.random.uniform(jax.random.fold_in(key, 1), (size, task.costs)) * data.spare[view]
            raw = raw.at[..., 1:].add(rest[:, None])
        togo = (raw - data.centre) / data.spread
        action = data.actions[rows]
        return Contexts(
            togo=togo, obs=data.obs[rows],
            action=jax.nn.one_hot(action, task.action_dim) if task.discrete else action,
            time=time, costs=data.costs[rows], valid=time < length,
        )  # fmt: skip

    # -- the learning -------------------------------------------------------------------------------------

    def init(self, task: Task, key: Array) -> CDTState:
        """All weights at random, as small as in GPT."""
        config, width = self.config, self.config.hidden[0]
        assert task.units.horizon is not None  # a dataset always has one
        key_trunk, key_action, key_cost = jax.random.split(key, 3)
        trunk = Transformer(
            costs=task.costs, obs_dim=task.obs_dim, action_dim=task.action_dim,
            times=task.units.horizon, width=width, blocks=len(config.hidden), heads=config.heads,
            rate=config.dropout, key=key_trunk,
        )  # fmt: skip
        outputs = task.action_dim * (1 if task.discrete else 2)
        net = CDTNetwork(
            trunk,
            0.02 * jax.random.normal(key_action, (width, outputs)), jnp.zeros(outputs),
            0.02 * jax.random.normal(key_cost, (width, task.costs)), jnp.zeros(task.costs),
            task.discrete, self.targets, config.context, config.jump or max(config.context // 2, 1),
        )  # fmt: skip
        log_beta = jnp.log(jnp.asarray(config.entropy_start))
        return CDTState(net, log_beta, self.adam.init(net), self.adam_beta.init(log_beta))

    def update(
        self, task: Task, state: CDTState, batch: Contexts, key: Array, step: Array, phase: str
    ) -> tuple[CDTState, dict[str, Array]]:
        """One step of AdamW on the loss, one of Adam on log beta."""
        config, count = self.config, jnp.sum(batch.valid)
        target = config.target_entropy
        if target is None:
            target = 0.1 * float(np.log(task.action_dim)) if task.discrete else -float(task.action_dim)

        def mean(x: Array) -> Array:
            return jnp.sum(jnp.where(batch.valid, x, 0.0)) / count

        def loss(net: CDTNetwork) -> tuple[Array, tuple[Array, Array, Array]]:
            outputs, cost_logits = net.heads(batch, key)
            log_p, entropy = net.log_prob_and_entropy(outputs, batch.action)
            cross = optax.sigmoid_binary_cross_entropy(cost_logits, jnp.clip(batch.costs, 0.0, 1.0))
            likelihood, H, cost = mean(log_p), mean(entropy), mean(jnp.sum(cross, axis=-1))
            value = -(likelihood + jnp.exp(state.log_beta) * H) + config.cost_weight * cost
            return value, (likelihood, H, cost)

        net, opt, (value, told) = descend(self.adam, loss, state.net, state.opt, has_aux=True)
        likelihood, H, cost = told
        slope = jnp.exp(state.log_beta) * (H - target)  # d/d(log beta) of beta (H - target)
        update, opt_beta = self.adam_beta.update(slope, state.opt_beta)
        log_beta = jnp.clip(optax.apply_updates(state.log_beta, update), -10.0, 3.0)
        metrics = {
            "loss/cdt": value, "loss/cost": cost, "log_prob": likelihood, "entropy": H,
            "beta": jnp.exp(log_beta),
        }  # fmt: skip
        return CDTState(net, log_beta, opt, opt_beta), metrics

    # -- the output ---------------------------------------------------------------------------------------

    def policy(self, state: CDTState) -> CDTNetwork:
        """The network."""
        return state.net

    def keeps(self, done: int) -> bool:
        """The last model only: earlier ones are the same, less trained."""
        return done == self.config.steps

    def report(self, task: Task, state: CDTState, members: Any, weights: Any) -> dict[str, Any]:
        """The return that is asked for at the run's limits."""
        return {"target_return": state.net.export(task).target_return}
