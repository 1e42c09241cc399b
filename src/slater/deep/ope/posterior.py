"""What a log says of policies that nobody ran: one joint distribution of J over all candidates.

The log model says m(pi). Its error e(pi) = J(pi) - m(pi) is taken for a random function over policies,
Gaussian, per utility, with the covariance

    K(i, k) = kappa S(i, k)                                 S: networks on halves of the episodes disagree
            + sigma^2 |m_i| |m_k| R(i, k)                   what all networks get wrong alike
            + sqrt(v_i v_k) R(i, k)                         too few events: v_i = eta s (m_i + s / E) / E_i
            + (zeta s)^2 T_i u_i T_k u_k R(i, k)            what next to nobody did
    R(i, k) = (1 + exp(-D(i, k) / l)) / 2                   D: how differently two policies act on the log's
    states

times R(i, k) in the first part as well: a covariance of few networks is of low rank, and what it says of
policies that act differently is mostly chance (localisation, as in ensemble Kalman filters).

With E episodes in the log, E_i = E exp(-KL(pi_i || the log's clone)) of them that speak of pi_i, and s the
size of an event (the mean square of a step's cost over its mean): what was never seen is priced as one event
of that size. u_i is the share of pi_i's T_i steps that next to nobody took: actions more than sqrt(N) times
as likely under pi_i as under the clones of the log and of its behaviours, N rows, which is where weights
would be cut (Ionides 2008). For the reward, |m| is the spread of the log's returns, and there is no event.

A policy that was searched for in the model of one half of the log is lucky there: its m is what the networks
of the other half say, whose error has twice the variance, and nothing in common with that of the first half:
S(i, k) times 2 where the same half judges both, 1 where both halves judge one of them, else 0.

The log shows e at its behaviours: what the episodes of behaviour k did, less m(clone of k) *from the first
states of those episodes*, with a variance of their mean and of what the clone does otherwise: tau times the
cost itself, or the spread of returns. Conditioning on that is all that the log corrects. A log that had luck
with its events has a model with the same luck: of that these errors show nothing, so the third part stays as
it is. How large sigma and tau are in this log, the errors say as well: they are those of highest evidence on
a grid, under a prior. At last the log's first states are a sample of all, which adds the covariance of means
over them, from all episodes.

kappa, sigma, eta, l, tau were learned on small worlds of known truth (`python -m benchmarks.prior`). zeta,
the standard deviation of a chance to cost of which nothing is known, was chosen on the world `resonance`.

A standard deviation is an estimate, too, and what was chosen is where it errs. So bounds count deviations by
Student's t: on 31 random tasks the worst cost of what was chosen lay beyond 1.64 deviations in 5, beyond 2.1
in 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.special import stdtrit

from slater.deep.compiled import quick_key
from slater.deep.log_model.clones import one_of
from slater.deep.log_model.log_model import LogModel
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.rollouts import outcomes_of
from slater.deep.task import counts_episodes
from slater.limit_status import LimitStatus

__all__ = ["Posterior", "Prior", "deviations_at", "posterior_of"]

F64 = NDArray[np.float64]


class Prior(NamedTuple):
    """How wrong log models are, see the module's text; of a cost and of the reward."""

    kappa: float
    sigma: float
    eta: float
    length: float
    tau: float


#: learned on worlds of seeds 0 to 4; reported on others
COST_PRIOR = Prior(kappa=1.0, sigma=0.2, eta=0.8, length=0.1, tau=0.2)
REWARD_PRIOR = Prior(kappa=1.0, sigma=0.15, eta=0.0, length=0.1, tau=0.55)
#: multiples of sigma and of tau that the errors on the log's behaviours choose among, and standard deviation
#: of their logarithms a priori
SCALES, SHARES, SCALE_SPREAD = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (0.25, 0.5, 1.0, 2.0), 1.2
#: episodes that the spread of the whole log counts for in that of a behaviour's
SPREAD_EPISODES = 4
#: zeta, see the module's text
UNSEEN = 0.1
#: degrees of freedom of the t by which bounds count standard deviations
TAILS = 4.0
#: nats per step beyond which a policy has no share of the log at all
FARTHEST = 3.0
#: share of a limit by which a solver's rounding may exceed it
TOLERANCE = 1e-3


def deviations_at(confidence: float) -> float:
    """How many standard deviations above its mean a cost's bound of this confidence is."""
    return float(stdtrit(TAILS, confidence))


@dataclass(frozen=True, eq=False)
class Posterior:
    """J of P policies, per utility: reward first, then costs, in J-units of the task.

    mean: (P, 1+I); covariance: (1+I, P, P); said: (P, 1+I) what the log model says, before the log corrects
    it; length: (P,) mean steps of an episode; scale: (1+I, 2) the multiples of sigma and tau that this log's
    errors ask for
    """

    mean: F64
    covariance: F64
    said: F64
    length: F64
    scale: F64

    @property
    def deviation(self) -> F64:
        """Standard deviations, (P, 1+I)."""
        return np.sqrt(np.maximum(np.einsum("upp->pu", self.covariance), 0.0))

    def of(self, places: Sequence[int] | NDArray[Any]) -> Posterior:
        """Of some of the policies, in the order of `places`."""
        p = np.asarray(places)
        return Posterior(
            self.mean[p], self.covariance[:, p][:, :, p], self.said[p], self.length[p], self.scale
        )

    def status(self, weights: F64, tau: NDArray[Any], confidence: float) -> list[LimitStatus]:
        """Of each limit, (I,), under a mixture: within where the bound is, above where the mean is, else not
        known.
        """
        mean, deviation = self.mixed(weights)
        bound = mean + deviations_at(confidence) * deviation
        return [
            LimitStatus.WITHIN if upper <= limit * (1 + TOLERANCE) else
            LimitStatus.ABOVE if middle > limit else LimitStatus.NOT_KNOWN
            for middle, upper, limit in zip(mean[1:], bound[1:], np.asarray(tau, np.float64), strict=True)
        ]  # fmt: skip

    def mixed(self, weights: F64) -> tuple[F64, F64]:
        """Mean and standard deviation of a mixture, (1+I,) each."""
        variance = np.einsum("p,upq,q->u", weights, self.covariance, weights)
        return weights @ self.mean, np.sqrt(np.maximum(variance, 0.0))


def posterior_of(
    log: LogModel, policies: Sequence[PolicyNetwork] = (), halves: Sequence[int | None] = (), seed: int = 0
) -> Posterior:
    """Of the log's candidates, and of `policies`, of any kind, after them.

    halves: of each policy, in which half of the log's model it was searched for, if it was
    """
    own = [one_of(log.candidates, k) for k in range(len(log.kinds))]
    every, key, task = own + list(policies), quick_key(seed), log.task
    # what is said of the log's own policies is the log's: asked once for all runs and looks
    if seed not in log.memo:
        log.memo[seed] = outcomes_of(task, log.dynamics, own, log.first, key), shown(log, key)
    values, seen = log.memo[seed]
    if policies:
        of_run = outcomes_of(task, log.dynamics, policies, log.first, key)
        values = np.concatenate([values, of_run])
    acting = acting_of(log, every, key)
    if not counts_episodes(task):  # later steps count for less
        values = values.copy()
        values[..., -1] = np.minimum(values[..., -1], 1.0 / (1.0 - task.gamma))
    judges = judges_of([None] * len(log.kinds) + (list(halves) or [None] * len(policies)))
    found = [
        conditioned(
            values[..., [u, -1]], judges, log.sums[:, u], acting,
            [(k, did[:, u], own[u]) for k, did, own in seen],
            COST_PRIOR if u else REWARD_PRIOR, float(log.event[u]) if u else None,
        )
        for u in range(1 + task.costs)
    ]  # fmt: skip
    said = told(values, judges)
    return Posterior(
        np.stack([mean for mean, _, _ in found], axis=1), np.stack([wide for _, wide, _ in found]),
        said[:, :-1], said[:, -1], np.array([scale for _, _, scale in found]),
    )  # fmt: skip


def judges_of(halves: Sequence[int | None]) -> F64:
    """How much each half of the log's networks says of P policies, (P, 2): both alike, or, of one that was
    searched for in one half, the other half alone.
    """
    return np.array([[0.5, 0.5] if half is None else [float(half == 1), float(half == 0)] for half in halves])


def told(values: F64, judges: F64) -> F64:
    """What the model says of P policies, (P, ...), by values (P, M, n, ...) and `judges_of` them."""
    parts = [values[:, half::2] if values.shape[1] > 1 else values for half in (0, 1)]
    return np.einsum("ph,hp...->p...", judges, np.stack([part.mean(axis=(1, 2)) for part in parts]))


def shown(log: LogModel, key: Array) -> list[tuple[int, F64, F64]]:
    """Of every behaviour, and of the log as a whole: its candidate, what its episodes did, (n, 1+I), and what
    the model says of the clone from their first states, (1+I,).
    """
    own, found = log.behaviours, []
    whole = log.behaviours.labels >= 0
    for number in range(len(own) + (len(own) > 1)):
        chosen = (own.labels == number) if number < len(own) else whole
        episodes = np.flatnonzero(chosen)
        if len(episodes) < 2:
            continue
        policy = one_of(log.candidates, number)
        values = outcomes_of(log.task, log.dynamics, [policy], log.first[episodes], key)
        found.append((number, log.sums[episodes, :-1], values.mean(axis=(0, 1, 2))[:-1]))
    return found


def conditioned(
    values: F64, judges: F64, logged: F64, acting: Acting, shown: list[Any], prior: Prior, event: float | None
) -> tuple[F64, F64, tuple[float, float]]:
    """Mean (P,) and covariance (P, P) of J of one utility, and the multiples of sigma and tau.

    values: (P, M, n, 2) of the utility, and the steps; judges: (P, 2), see `judges_of`; logged: (E,)
    event: size of a cost's; None: the reward
    """
    (said, steps), count = told(values, judges).T, len(logged)
    values, spread = values[..., 0], max(float(logged.std()), 1e-12)
    alike = 0.5 * (1.0 + np.exp(-acting.apart / prior.length))
    networks = np.cov(values.mean(axis=2)) if values.shape[1] > 1 else np.zeros_like(alike)
    # what one half says has twice the variance of what both say, and halves err independently
    networks = networks * 2.0 * (judges @ judges.T)
    first = np.cov(values.mean(axis=1)) / count
    size, few, never = np.full(len(said), spread), np.zeros(len(said)), np.zeros(len(said))
    if event is not None:
        size = np.abs(said)
        seldom = event * (size + event / count) / count * np.exp(np.clip(acting.far, 0.0, FARTHEST))
        few, never = np.sqrt(prior.eta * seldom), UNSEEN * event * steps * acting.unseen

    def kernel(scale: float) -> F64:
        off = (scale * prior.sigma) ** 2 * np.outer(size, size)
        return (prior.kappa * networks + off + np.outer(never, never)) * alike

    # a log that was lucky has a lucky model: of that its own episodes show nothing
    luck = np.outer(few, few) * alike + first
    if not shown:
        return said, kernel(1.0) + luck, (1.0, 1.0)
    places = np.array([k for k, _, _ in shown])
    own = np.array([[len(did), did.mean(), did.var(ddof=1), m] for _, did, m in shown]).T
    episodes, did, variance, model = own
    # the spread within a behaviour, held near that of the log where few episodes tell it
    known = episodes - 1
    within = (known * variance + SPREAD_EPISODES * spread**2) / (known + SPREAD_EPISODES) / episodes
    # where all episodes are worth the same, no less than the kernel's digits hold
    within = np.maximum(within, 1e-6 * np.diag(kernel(1.0))[places])
    otherwise = prior.tau * (spread if event is None else np.maximum(np.abs(did), np.abs(model)))
    error, best, chosen = did - model, -np.inf, (1.0, 1.0)
    for scale, share in itertools.product(SCALES, SHARES):
        total = kernel(scale)[np.ix_(places, places)] + np.diag(within + (share * otherwise) ** 2)
        _, logdet = np.linalg.slogdet(total)
        unlikely = (np.log(scale) ** 2 + np.log(share) ** 2) / SCALE_SPREAD**2
        evidence = -0.5 * (error @ np.linalg.solve(total, error) + logdet + unlikely)
        if evidence > best:
            best, chosen = evidence, (scale, share)
    K, noise = kernel(chosen[0]), np.diag(within + (chosen[1] * otherwise) ** 2)
    gain = np.linalg.solve(K[np.ix_(places, places)] + noise, K[places]).T
    return said + gain @ error, K - gain @ K[places] + luck, chosen


class Acting(NamedTuple):
    """How P policies act at the log's states, beside each other and beside those who acted in the log.

    apart: Jensen-Shannon divergences, (P, P), at most log 2 each; far: KL(policy || the log's clone), (P,);
    both in nats per step; unseen: the share of steps that next to nobody took, (P,)
    """

    apart: F64
    far: F64
    unseen: F64


def acting_of(log: LogModel, policies: Sequence[PolicyNetwork], key: Array) -> Acting:
    """How `policies` act, of which the first are the log's candidates."""
    obs = jnp.asarray(log.obs)
    drawn = [_drawn(policy, obs, key) for policy in policies]
    # density[j, i]: log-density under policy j of actions that policy i drew, (P, P, n)
    density = np.stack([jnp.stack([_density(policy, obs, own) for own in drawn]) for policy in policies])
    density = density.astype(np.float64)
    self = np.einsum("iin->in", density)
    mixed = np.logaddexp(self[:, None], density.transpose(1, 0, 2)) - np.log(2.0)
    half = np.mean(self[:, None] - mixed, axis=-1)
    # who acted in the log: its clone, and the clones of its behaviours, as often as they did
    labels = log.behaviours.labels
    often = np.bincount(labels[labels >= 0], minlength=log.whole)
    shares = 0.5 * np.append(often / often.sum(), 1.0)
    logged = np.logaddexp.reduce(density[: len(shares)] + np.log(shares)[:, None, None], axis=0)
    cut = 0.5 * np.log(max(float(log.sums[:, -1].sum()), 1.0))
    return Acting(
        np.maximum(0.5 * (half + half.T), 0.0), np.mean(self - density[log.whole], axis=-1),
        np.mean(self - logged > cut, axis=-1),
    )  # fmt: skip


@eqx.filter_jit
def _drawn(policy: PolicyNetwork, obs: Array, key: Array) -> Array:
    return policy.drawn(obs, key)


@eqx.filter_jit
def _density(policy: PolicyNetwork, obs: Array, drawn: Array) -> Array:
    return policy.log_drawn(obs, drawn)
