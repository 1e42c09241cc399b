"""The log's dynamics: an ensemble of networks that say what follows a state and an action, with its chances.

    s' | s, a          a mixture of K products: each component has a Gaussian for the change of every column
                       that varies freely and chances for every column of few levels (flags, counts);
                       where observations are one-hot, chances of which column is on
    U | s, a, s'       the *mean* of every utility: logistic where it takes two values only, quasi-Poisson
                       where it is never negative (rare events, heavy tails), else least squares
    P(end | s, a, s')  logistic

Noise that is the world's is sampled: where a cost sets in beyond a line, the mean state may never cross it.
Each network learns from one half of the log's *episodes*, so that networks disagree about what the data leave
open, and what was searched for in one half is judged by the other. Held-out episodes stop the fit where their
likelihood is best. After the fit the level of every utility is set so that its mean over the network's rows
is the log's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.deep.compiled import quick_key
from slater.deep.log_model.columns import NAMES, POSITIVE, TWO_VALUES, shown_by
from slater.deep.nets.mlp import MLP, normal_at, picked, stacked
from slater.deep.task import Task

__all__ = ["Dynamics", "DynamicsSettings", "Rows", "better_of", "cosine", "fit_dynamics", "random_dynamics"]

F64 = NDArray[np.float64]
Tick = Callable[[str, int, int], None]

#: range of the log standard deviation of a change, in units of that column's typical change
LOG_STD = (-7.0, 1.5)
#: a change is at most this many times its root mean square
LARGEST_CHANGE = 30.0
#: weight of the losses of utilities and ends beside the state's
OUTCOME_WEIGHT = 4.0
#: looks at the held-out episodes during a fit
LOOKS = 16
#: rows at which the held-out likelihood is taken, at most
HELD_ROWS = 8_192


@dataclass(frozen=True)
class DynamicsSettings:
    """How the dynamics are fitted; equal settings on equal data give the same bits."""

    networks: int = 4
    """networks"""
    components: int = 4
    """K, of the mixture that s' is drawn from"""
    levels: int = 6
    """values of a column that has levels at most; 0: no column has; 1: observations are one-hot
    (`slater.deep.log_model.columns.levels_of`)"""
    epochs: float = 15.0
    """times that every row is seen by each network, within `steps`"""
    steps: tuple[int, int] = (1_000, 4_000)
    """iterations at least and at most"""
    batch_size: int = 128
    """rows per network and iteration"""
    learning_rate: float = 2e-3
    """of Adam, falling to 0 along a cosine"""
    hidden: tuple[int, ...] = (128, 128)
    """layers of the part that predicts s', normalised, SiLU"""
    outcome_hidden: tuple[int, ...] = (64, 64)
    """layers of the part that predicts utilities and ends"""
    seed: int = 0
    """of halves, initial weights and minibatches"""


class Rows(NamedTuple):
    """Transitions in the task's units: obs (N, s), actions (N, a) one-hot if discrete, utilities (N, 1+I),
    ended (N,), next_obs (N, s).
    """

    obs: Array
    actions: Array
    utilities: Array
    ended: Array
    next_obs: Array


class Dynamics(eqx.Module):
    """M networks, whose leaves have an axis M first, and what the data have shown; D columns, K components.

    levels: (D, L) values of columns that take few, in the order of size, the last one repeated to fill up
    level_count: (D,) of each; 0: the column varies freely; L = 1: one of the columns is on, `high`, others
    are off, `low`
    unit: (D,) root mean square of a change; low, high: (D,) range of observations
    links: (1+I,) how each utility's mean is given, see TWO_VALUES, POSITIVE, PLAIN
    utility_low, utility_high, utility_mean: (1+I,)
    level: (M, 1+I) what is added to a utility's output (POSITIVE: in logarithms), by the log's means
    ends: 1.0 if any episode was ended by the task, else 0.0
    """

    states: MLP
    outcomes: MLP
    level: Array
    levels: Array
    level_count: Array
    unit: Array
    low: Array
    high: Array
    links: Array
    utility_low: Array
    utility_high: Array
    utility_mean: Array
    ends: Array
    components: int = eqx.field(static=True)

    @property
    def networks(self) -> Any:
        """What one of the M networks is made of: leaves with an axis M first, for `jax.vmap`."""
        return (self.states, self.outcomes, self.level)

    @property
    def _has_levels(self) -> Array:
        """Which columns have levels, (D,)."""
        return (self.level_count > 0) | (self.levels.shape[1] == NAMES)

    def _heads(self, states: MLP, s: Array, a: Array) -> tuple[Array, Array, Array, Array]:
        """Log-weights (n, K); means and log standard deviations of changes, (n, K, D), in `unit`; log-chances
        of levels, (n, K, D, L), which sum to 1 over the levels of a column; of names, over columns.
        """
        out, K, (D, L) = states(jnp.concatenate([s, a], axis=-1)), self.components, self.levels.shape
        weight, out = jax.nn.log_softmax(out[:, :K], axis=-1), out[:, K:].reshape(len(s), K, D * (2 + L))
        mean, raw, logits = out[..., :D], out[..., D : 2 * D], out[..., 2 * D :].reshape(len(s), K, D, L)
        low, high = LOG_STD
        log_std = low + jax.nn.softplus(high - jax.nn.softplus(high - raw) - low)
        beyond = jnp.arange(L) >= jnp.maximum(self.level_count, L != NAMES)[:, None]
        over = -2 if L == NAMES else -1
        return weight, mean, log_std, jax.nn.log_softmax(jnp.where(beyond, -1e9, logits), axis=over)

    def log_likelihood(self, states: MLP, rows: Rows) -> tuple[Array, Array]:
        """Of every row's s', (n,): its log-likelihood, and the loss whose gradient is followed.

        That of the likelihood, by each component's share in the row, but every Gaussian's term is weighted by
        its standard deviation (beta-NLL of Seitzer et al. 2022, beta = 1/2): the plain likelihood neglects
        columns that are hard to predict.
        """
        weight, mean, log_std, chances = self._heads(states, rows.obs, rows.actions)
        goal = jnp.clip((rows.next_obs - rows.obs) / self.unit, -LARGEST_CHANGE, LARGEST_CHANGE)[:, None]
        each = -0.5 * ((goal - mean) * jnp.exp(-log_std)) ** 2 - log_std
        beta = jax.lax.stop_gradient(jnp.exp(log_std))
        if (L := self.levels.shape[1]) > 0:
            place = jnp.argmin(jnp.abs(rows.next_obs[..., None] - self.levels), axis=-1)
            taken = jnp.take_along_axis(chances, place[:, None, :, None], axis=-1)[..., 0]
            if L == NAMES:  # that of the column that is on
                on = (rows.next_obs >= self.high) & (self.level_count > 0)
                taken = jnp.where(on[:, None], taken, 0.0)
            each = jnp.where(self._has_levels, taken, each)
            beta = jnp.where(self._has_levels, 1.0, beta)
        joint = weight + jnp.sum(each, axis=-1)
        share = jax.lax.stop_gradient(jax.nn.softmax(joint, axis=-1))
        loss = -jnp.sum(share * (weight + jnp.sum(beta * each, axis=-1)), axis=-1)
        return jax.nn.logsumexp(joint, axis=-1), loss

    def outcome(
        self, outcomes: MLP, level: Array, s: Array, a: Array, s_next: Array
    ) -> tuple[Array, Array, Array]:
        """Mean utilities (n, 1+I), P(end) (n,), and the raw outputs (n, 2+I), by one network."""
        raw = outcomes(jnp.concatenate([s, a, s_next], axis=-1))
        out, width = raw[:, :-1], self.utility_high - self.utility_low
        chance = self.utility_low + width * jax.nn.sigmoid(out + level)
        positive = jnp.minimum(self.utility_mean * jax.nn.softplus(out) * jnp.exp(level), self.utility_high)
        plain = jnp.clip(out + level, self.utility_low - width, self.utility_high + width)
        mean = jnp.where(self.links == TWO_VALUES, chance, jnp.where(self.links == POSITIVE, positive, plain))
        return mean, self.ends * jax.nn.sigmoid(raw[:, -1]), raw

    def step(
        self, network: Any, s: Array, a: Array, key: Array, noise: Array | float = 1.0
    ) -> tuple[Array, Array, Array]:
        """A drawn s', the mean utilities and P(end), by one network; noise 0: columns that vary freely change
        by the mean of the component that was drawn.
        """
        states, outcomes, level = network
        weight, mean, log_std, chances = self._heads(states, s, a)
        D, L = self.levels.shape
        uniform = jax.random.uniform(key, (len(s), 1 + D + (D if L > NAMES else L)))
        which = picked(jnp.exp(weight), uniform[:, 0])[:, None, None]
        mean, log_std = (jnp.take_along_axis(x, which, axis=1)[:, 0] for x in (mean, log_std))
        change = mean + noise * jnp.exp(log_std) * normal_at(uniform[:, 1 : 1 + D])
        change = jnp.clip(change, -LARGEST_CHANGE, LARGEST_CHANGE) * self.unit
        s_next = jnp.clip(s + change, self.low, self.high)
        if L > 0:
            chance = jnp.exp(jnp.take_along_axis(chances, which[..., None], axis=1)[:, 0])
            if L == NAMES:
                place = picked(chance[..., 0], uniform[:, -1])[:, None]
                value = jnp.where(jnp.arange(D) == place, self.high, self.low)
            else:
                value = self.levels[jnp.arange(D), picked(chance, uniform[:, 1 + D :])]
            s_next = jnp.where(self._has_levels, value, s_next)
        utilities, end, _ = self.outcome(outcomes, level, s, a, s_next)
        return s_next, utilities, end


def random_dynamics(task: Task, settings: DynamicsSettings) -> Dynamics:
    """Networks at random, which know nothing of the data; their shape is the task's and the settings'."""
    D, utilities = task.obs_dim, 1 + task.costs
    outputs, inputs = settings.components * (1 + D * (2 + settings.levels)), D + task.action_dim

    def many(sizes: list[int], seed: int) -> MLP:
        return stacked(lambda rng: MLP(sizes, rng, layer_norm=True, smooth=True), settings.networks, seed)

    return Dynamics(
        states=many([inputs, *settings.hidden, outputs], 2 * settings.seed),
        outcomes=many([inputs + D, *settings.outcome_hidden, utilities + 1], 2 * settings.seed + 1),
        level=jnp.zeros((settings.networks, utilities)), levels=jnp.zeros((D, settings.levels)),
        level_count=jnp.zeros(D, jnp.int32), unit=jnp.ones(D), low=jnp.zeros(D), high=jnp.zeros(D),
        links=jnp.zeros(utilities, jnp.int32), utility_low=jnp.zeros(utilities),
        utility_high=jnp.zeros(utilities), utility_mean=jnp.ones(utilities), ends=jnp.zeros(()),
        components=settings.components,
    )  # fmt: skip


def _with_statistics(dynamics: Dynamics, rows: dict[str, NDArray[Any]]) -> Dynamics:
    """With what the rows (the fields of `Rows`, NumPy) show of ranges, units and kinds of columns."""

    def old(d: Dynamics) -> tuple[Array, ...]:
        return (
            d.levels, d.level_count, d.unit, d.low, d.high, d.links, d.utility_low, d.utility_high,
            d.utility_mean, d.ends,
        )  # fmt: skip

    new = shown_by(rows, dynamics.levels.shape[1])
    arrays = tuple(jnp.asarray(x, like.dtype) for x, like in zip(new, old(dynamics), strict=True))
    found: Dynamics = eqx.tree_at(old, dynamics, arrays)
    return found


def fit_dynamics(
    task: Task, rows: dict[str, NDArray[Any]], episode: NDArray[np.int64], held: NDArray[np.bool_],
    settings: DynamicsSettings, tick: Tick | None = None,
) -> tuple[Dynamics, F64]:  # fmt: skip
    """The dynamics of a log, and the mean held-out log-likelihood of s' by each network, (M,).

    rows: fields of `Rows`; episode: (N,) of each row; held: (E,) episodes that stop the fit and train
    nothing.
    """
    device = Rows(**{name: jnp.asarray(rows[name], jnp.float32) for name in Rows._fields})
    train = np.flatnonzero(~held[episode])
    judge = np.flatnonzero(held[episode])
    judge = judge if len(judge) else train
    rng = np.random.default_rng(settings.seed)
    judge = rng.permutation(judge)[:HELD_ROWS]
    own = jnp.asarray(_halves(episode[train], train, settings.networks, rng))
    wanted = settings.epochs * len(train) / settings.batch_size
    steps = int(np.clip(wanted, *settings.steps))
    start = _with_statistics(random_dynamics(task, settings), rows)
    found, likelihood = _fitted(settings, start, device, own, jnp.asarray(judge), steps, tick)
    return _levelled(found, device, own), likelihood


def _halves(
    episode: NDArray[np.int64], rows: NDArray[np.int64], networks: int, rng: np.random.Generator
) -> NDArray[np.int32]:
    """Rows for every network, (M, n): network m has those of half m % 2 of the episodes; of one, all."""
    known = rng.permutation(np.unique(episode))
    parts = [known[::2], known[1::2]] if len(known) > 1 else [known, known]
    own = [rows[np.isin(episode, part)] for part in parts]
    size = max(map(len, own))
    found = [
        np.append(x := own[m % 2], rng.choice(x, size - len(x))) if len(own[m % 2]) < size else own[m % 2]
        for m in range(networks)
    ]
    return np.stack(found).astype(np.int32)


def _losses(dynamics: Dynamics, states: MLP, outcomes: MLP, rows: Rows) -> tuple[Array, Array, Array]:
    """The log-likelihood of s', its loss, and that of the outcomes, (n,) each."""
    known, state = dynamics.log_likelihood(states, rows)
    zero = jnp.zeros(dynamics.level.shape[1])
    raw = dynamics.outcome(outcomes, zero, rows.obs, rows.actions, rows.next_obs)[2]
    width = jnp.maximum(dynamics.utility_high - dynamics.utility_low, 1e-9)
    chance = optax.sigmoid_binary_cross_entropy(raw[:, :-1], (rows.utilities - dynamics.utility_low) / width)
    size = jax.nn.softplus(raw[:, :-1])
    count = size - rows.utilities / dynamics.utility_mean * jnp.log(size + 1e-8)
    plain = (raw[:, :-1] - rows.utilities) ** 2
    each = jnp.where(
        dynamics.links == TWO_VALUES, chance, jnp.where(dynamics.links == POSITIVE, count, plain)
    )
    end = optax.sigmoid_binary_cross_entropy(raw[:, -1], rows.ended)
    return known, state, jnp.sum(each, axis=-1) + dynamics.ends * end


def _fitted(
    settings: DynamicsSettings, start: Dynamics, device: Rows, own: Array, judge: Array, steps: int,
    tick: Tick | None,
) -> tuple[Dynamics, F64]:  # fmt: skip
    """Trained for `steps`, each part of each network as it was when its held-out loss was least."""
    key = quick_key(settings.seed + 1)
    stretch = -(-steps // LOOKS)
    networks = (start.states, start.outcomes)
    carry, kept = (networks, optax.scale_by_adam().init(networks)), networks
    best = np.full((2, settings.networks), np.inf)
    for look in range(LOOKS):
        places = jnp.asarray([look * stretch, (look + 1) * stretch, LOOKS * stretch])
        carry, *now = _advance(settings, start, device, own, judge, carry, key, places)
        found = np.array([np.nan_to_num(np.asarray(x, np.float64), nan=np.inf) for x in now])
        kept = tuple(map(better_of, jnp.asarray(found < best), carry[0], kept))
        best = np.minimum(best, found)
        if tick is not None:
            tick("model of the log", (look + 1) * stretch, LOOKS * stretch)
    ended: Dynamics = eqx.tree_at(lambda d: (d.states, d.outcomes), start, kept)
    return ended, -best[0]


@eqx.filter_jit
def _advance(
    settings: DynamicsSettings, start: Dynamics, device: Rows, own: Array, judge: Array, carry: Any,
    key: Array, places: Array,
) -> tuple[Any, Array, Array]:  # fmt: skip
    """Iterations places[0] to places[1] of places[2]; held-out losses of states and outcomes after them,
    (M,).
    """
    adam = optax.scale_by_adam()

    def gradient(network: Any, mine: Array) -> Any:
        def loss(n: Any) -> Array:
            _, state, outcome = _losses(start, n[0], n[1], jax.tree.map(lambda x: x[mine], device))
            return jnp.mean(state) + OUTCOME_WEIGHT * jnp.mean(outcome)

        return jax.grad(loss)(network)

    def step(index: Array, carry: Any) -> Any:
        networks, opt = carry
        shape = (own.shape[0], settings.batch_size)
        drawn = jax.random.randint(jax.random.fold_in(key, index), shape, 0, own.shape[1])
        grads = jax.vmap(gradient)(networks, jnp.take_along_axis(own, drawn, axis=1))
        updates, opt = adam.update(grads, opt)
        rate = -settings.learning_rate * cosine(index, places[2])
        return jax.tree.map(lambda n, u: n + rate * u, networks, updates), opt

    carry = jax.lax.fori_loop(places[0], places[1], step, carry)
    apart = jax.tree.map(lambda x: x[judge], device)
    _, state, outcome = jax.vmap(lambda n: _losses(start, n[0], n[1], apart))(carry[0])
    return carry, jnp.mean(state, axis=1), jnp.mean(outcome, axis=1)


@eqx.filter_jit
def better_of(gains: Array, new: Any, old: Any) -> Any:
    """Of many networks, leaves with an axis M first, the `new` ones where `gains`, (M,), else the `old`."""
    return jax.tree.map(lambda n, o: jnp.where(gains.reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old)


def cosine(index: Array, total: Array) -> Array:
    """Share of the learning rate at iteration `index` of `total`, from 1 to 0."""
    return 0.5 * (1.0 + jnp.cos(jnp.pi * index / total))


def _levelled(dynamics: Dynamics, device: Rows, own: Array) -> Dynamics:
    """With levels of utilities by which every network's mean over its own rows is that of the log."""

    @eqx.filter_jit
    def said_of(network: Any, level: Array, rows: Rows) -> Array:
        return dynamics.outcome(network, level, rows.obs, rows.actions, rows.next_obs)[0].mean(axis=0)

    low, links = np.asarray(dynamics.utility_low, np.float64), np.asarray(dynamics.links)
    width = np.maximum(np.asarray(dynamics.utility_high, np.float64) - low, 1e-9)
    levels = np.zeros(dynamics.level.shape, np.float32)
    for level, places, leaves in zip(
        levels, np.asarray(own)[:, : 4 * HELD_ROWS], _each(dynamics.outcomes), strict=True
    ):
        rows = Rows(*(jnp.asarray(np.asarray(column)[places]) for column in device))
        true = np.asarray(rows.utilities, np.float64).mean(axis=0)
        for _ in range(8):
            said = np.asarray(said_of(leaves, jnp.asarray(level), rows), np.float64)
            ratio = np.log(np.maximum(true, 1e-9) / np.maximum(said, 1e-9))
            p, q = (np.clip((x - low) / width, 1e-6, 1 - 1e-6) for x in (said, true))
            logit = np.log(q / (1 - q) / (p / (1 - p)))
            change = np.where(links == TWO_VALUES, logit, np.where(links == POSITIVE, ratio, true - said))
            level += np.clip(change, -3.0, 3.0)
    found: Dynamics = eqx.tree_at(lambda d: d.level, dynamics, jnp.asarray(levels))
    return found


def _each(networks: MLP) -> list[MLP]:
    """The networks whose leaves have an axis first, one by one."""
    many = jax.tree.map(np.asarray, networks)
    count = len(many.weights[0])
    return [jax.tree.map(lambda x, n=n: jnp.asarray(x[n]), many) for n in range(count)]
