"""E_D, A_D and the critics' programs against brute force over W and independent statements in cvxpy."""

import itertools

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slater import tabular as tab
from slater.tabular.classes import ValueClass, WeightClass
from slater.tabular.critic_programs import TIE_BREAK

from .problems import (
    deterministic_cmdp,
    few,
    fewer,
    population,
    random_cmdp,
    random_policy,
    sampled,
    seeds,
    without_pair,
)

S, A = 3, 2

signs = st.sampled_from([+1, -1, 0])


def classes() -> list[WeightClass]:
    return [tab.Box(2.0), tab.PerSampleBox(2.0), tab.L2Ball(1.5)]


kinds = st.sampled_from(range(3))


def features(kind: int, seed: int) -> ValueClass:
    if kind == 0:
        return tab.Tabular()
    if kind == 1:
        return tab.aggregation([0, 1, 1], A)
    # random features beside a constant one, so that the box of values is not missed
    random = np.random.default_rng(seed + 3).random((S, A, 3))
    return tab.Linear(np.concatenate([random, np.ones((S, A, 1))], axis=2))


# -- brute force over W ---------------------------------------------------------------------------


def atoms(data: tab.Counts, per_sample: bool) -> list[tuple[float, int, int, np.ndarray]]:
    """What w may depend on: (mass, s, a, distribution of s') for each pair or each triple of the data."""
    total = data.transitions.sum()
    found = []
    for s, a in itertools.product(range(data.num_states), range(data.num_actions)):
        row = data.transitions[s, a]
        if per_sample:
            found += [(row[t] / total, s, a, np.eye(len(row))[t]) for t in range(len(row)) if row[t] > 0]
        elif row.sum() > 0:
            found.append((row.sum() / total, s, a, row / row.sum()))
    return found


def vertices(weights: WeightClass, mass: np.ndarray) -> np.ndarray:
    """The vertices of the polytope W, one a row, as functions of the atoms."""
    assert isinstance(weights, tab.Box | tab.PerSampleBox)
    return weights.bound * np.array(list(itertools.product([0.0, 1.0], repeat=len(mass))))


def brute_force_error(
    data: tab.Counts, pi: np.ndarray, f: np.ndarray, U: np.ndarray, weights: WeightClass
) -> float:
    found = atoms(data, isinstance(weights, tab.PerSampleBox))
    mass = np.array([x[0] for x in found])
    V = (pi * f).sum(axis=1)
    delta = np.array([f[s, a] - U[s, a] - data.discount * follow @ V for _, s, a, follow in found])
    if isinstance(weights, tab.L2Ball):
        # Cauchy-Schwarz: the best w is along delta
        w = weights.radius * delta / np.sqrt(mass @ delta**2)
        return float(mass @ (w * delta))
    return float(np.abs(vertices(weights, mass) @ (mass * delta)).max())


@given(seeds, kinds)
@few
def test_the_bellman_error_is_the_maximum_over_w(seed: int, kind: int) -> None:
    weights = classes()[kind]
    # few next states keep the number of triples, hence of vertices, small
    cmdp = random_cmdp(seed, states=S, actions=A)
    rng = np.random.default_rng(seed)
    data = sampled(cmdp, 14, seed) if kind == 1 else sampled(cmdp, 200, seed)
    pi, f = random_policy(rng, S, A), rng.random((S, A)) * cmdp.horizon
    error = tab.bellman_error(data, pi, f, data.reward, weights)
    assert error == pytest.approx(brute_force_error(data, pi, f, data.reward, weights), abs=1e-10)


@given(seeds)
@few
def test_no_weights_in_the_l2_ball_do_better(seed: int) -> None:
    cmdp = random_cmdp(seed)
    data, rng = sampled(cmdp, 100, seed), np.random.default_rng(seed)
    pi, f = random_policy(rng, S, A), rng.random((S, A)) * 5
    rho, dbar = data.distribution, tab.bellman_residual(data, pi, f, data.reward)
    error = tab.bellman_error(data, pi, f, data.reward, tab.L2Ball(1.5))
    for _ in range(100):
        w = rng.normal(size=(S, A))
        w *= 1.5 / np.sqrt(np.sum(rho * w**2))
        assert abs(np.sum(rho * w * dbar)) <= error + 1e-12


# -- the formulas ---------------------------------------------------------------------------------


@given(seeds, kinds)
@few
def test_the_empirical_q_has_no_bellman_error(seed: int, kind: int) -> None:
    cmdp = random_cmdp(seed)
    data = without_pair(sampled(cmdp, 300, seed), 1, 0)
    pi = random_policy(np.random.default_rng(seed), S, A)
    model = data.model("pessimistic")
    for U, extended in ((data.reward, model.reward), (data.costs[0], model.costs[0])):
        policy = np.vstack([pi, np.full((2, A), 1 / A)])
        Q = model.q_values(policy, extended)[:S]
        weights = classes()[kind]
        if isinstance(weights, tab.PerSampleBox):
            # the per-sample form punishes even the truth, unless nothing is random
            assert tab.bellman_error(data, pi, Q, U, weights) > 0
        else:
            assert tab.bellman_error(data, pi, Q, U, weights) == pytest.approx(0.0, abs=1e-9)


@given(seeds)
@few
def test_the_per_sample_form_is_an_upper_bound(seed: int) -> None:
    cmdp = random_cmdp(seed)
    data, rng = sampled(cmdp, 150, seed), np.random.default_rng(seed)
    pi, f = random_policy(rng, S, A), rng.random((S, A)) * 5
    exact = tab.bellman_error(data, pi, f, data.reward, tab.Box(3.0))
    printed = tab.bellman_error(data, pi, f, data.reward, tab.PerSampleBox(3.0))
    assert printed >= exact - 1e-12


@given(seeds)
@few
def test_the_two_forms_agree_for_deterministic_transitions(seed: int) -> None:
    cmdp = deterministic_cmdp(seed)
    data, rng = sampled(cmdp, 150, seed), np.random.default_rng(seed)
    pi, f = random_policy(rng, S, A), rng.random((S, A)) * 5
    exact = tab.bellman_error(data, pi, f, data.reward, tab.Box(3.0))
    assert tab.bellman_error(data, pi, f, data.reward, tab.PerSampleBox(3.0)) == pytest.approx(exact)


@given(seeds)
@few
def test_the_advantage_is_an_average_over_the_data_and_vanishes_for_their_policy(seed: int) -> None:
    cmdp = random_cmdp(seed)
    data, rng = sampled(cmdp, 80, seed), np.random.default_rng(seed)
    pi, f = random_policy(rng, S, A), rng.random((S, A))
    mean = 0.0
    for s, a, t in itertools.product(range(S), range(A), range(S)):
        mean += data.transitions[s, a, t] / data.size * (pi[s] @ f[s] - f[s, a])
    assert tab.advantage(data, pi, f) == pytest.approx(mean)
    assert tab.advantage(data, data.behaviour, f) == pytest.approx(0.0, abs=1e-12)


@given(seeds)
@few
def test_performance_difference_on_the_population(seed: int) -> None:
    # H * A_D(pi, Q^pi) = J(pi) - J(mu) on the population of mu: why A_D is the right objective
    cmdp, rng = random_cmdp(seed), np.random.default_rng(seed)
    mu, pi = random_policy(rng, S, A), random_policy(rng, S, A)
    data = population(cmdp, mu)
    difference = cmdp.returns(pi)[0] - cmdp.returns(mu)[0]
    Q = cmdp.q_values(pi, cmdp.reward)
    assert cmdp.horizon * tab.advantage(data, pi, Q) == pytest.approx(difference, abs=1e-9)


# -- the programs ---------------------------------------------------------------------------------


def objective(data, pi, f, U, sign, weights, weight=2.0) -> float:
    return weight * tab.bellman_error(data, pi, f, U, weights) + sign * tab.advantage(data, pi, f)


def independent_optimum(data, pi, U, sign, weights, values) -> float:
    """`min_{f in F} 2 max_w |E_D[w delta]| + sign A_D`, with W by its vertices, as a user would write it."""
    f = cp.Variable((S, A))
    low, high = data.value_box(U)
    constraints = [f >= low, f <= high]
    if isinstance(values, tab.Linear):
        theta = cp.Variable(values.features.shape[2])
        constraints += [f[s, a] == values.features[s, a] @ theta for s in range(S) for a in range(A)]
    found = atoms(data, isinstance(weights, tab.PerSampleBox))
    mass = np.array([x[0] for x in found])
    V = cp.sum(cp.multiply(pi, f), axis=1)
    delta = cp.hstack([f[s, a] - U[s, a] - data.discount * (follow @ V) for _, s, a, follow in found])
    match weights:
        case tab.PerSampleBox(bound):
            # triples have too many vertices; the two extreme w are known: bound where delta has one sign
            error = bound * cp.maximum(mass @ cp.pos(delta), mass @ cp.neg(delta))
        case tab.L2Ball(radius):
            error = radius * cp.norm(cp.multiply(np.sqrt(mass), delta))
        case _:
            error = cp.max(cp.abs((vertices(weights, mass) * mass) @ delta))
    rho = data.distribution
    advantage = cp.sum(cp.multiply(rho.sum(axis=1), V)) - cp.sum(cp.multiply(rho, f))
    problem = cp.Problem(cp.Minimize(2 * error + sign * advantage), constraints)
    problem.solve(solver=cp.CLARABEL)
    assert problem.status == "optimal"
    return float(problem.value)


def tolerance(data: tab.Counts, U: np.ndarray) -> float:
    """What the tie-break on unseen pairs may give up, and the solvers' own tolerances."""
    low, high = data.value_box(U)
    return TIE_BREAK * (~data.seen).sum() * (high - low) + 2e-6


@pytest.mark.parametrize("kind", range(3), ids=["Box", "PerSampleBox", "L2Ball"])
@pytest.mark.parametrize("f_kind", range(3), ids=["tabular", "aggregation", "linear"])
@given(seed=seeds, sign=signs, missing=st.booleans())
@fewer
def test_the_critic_attains_the_optimum_of_its_program(
    kind: int, f_kind: int, seed: int, sign: int, missing: bool
) -> None:
    cmdp = random_cmdp(seed)
    data = sampled(cmdp, 60, seed)
    data = without_pair(data, 1, 1) if missing else data
    weights, values = classes()[kind], features(f_kind, seed)
    pi = random_policy(np.random.default_rng(seed), S, A)
    U = data.costs[0] if sign < 0 else data.reward
    f = tab.Critic(data, U, sign, weights, values).solve(pi)
    low, high = data.value_box(U)
    assert f.min() >= low - 1e-6
    assert f.max() <= high + 1e-6
    if isinstance(values, tab.Linear):
        Phi = values.features.reshape(S * A, -1)
        theta = np.linalg.lstsq(Phi, f.ravel(), rcond=None)[0]
        assert np.allclose(Phi @ theta, f.ravel(), atol=1e-6)
    attained = objective(data, pi, f, U, sign, weights)
    best = independent_optimum(data, pi, U, sign, weights, values)
    assert attained == pytest.approx(best, abs=tolerance(data, U))


@pytest.mark.parametrize("kind", range(3), ids=["Box", "PerSampleBox", "L2Ball"])
@pytest.mark.parametrize("f_kind", [0, 2], ids=["tabular", "linear"])
@given(seed=seeds, sign=signs)
@fewer
def test_a_warm_start_gives_what_a_cold_start_gives(kind: int, f_kind: int, seed: int, sign: int) -> None:
    cmdp, rng = random_cmdp(seed), np.random.default_rng(seed)
    data = without_pair(sampled(cmdp, 60, seed), 2, 0)
    weights, values = classes()[kind], features(f_kind, seed)
    U = data.costs[0] if sign < 0 else data.reward
    warm = tab.Critic(data, U, sign, weights, values)
    logits = np.zeros((S, A))
    for k in range(12):
        # small steps, a jump to a deterministic policy, and back
        logits += rng.normal(size=(S, A))
        pi = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        if k % 4 == 3:
            pi = np.eye(A)[rng.integers(A, size=S)]
        hot = warm.solve(pi)
        cold = tab.Critic(data, U, sign, weights, values).solve(pi)
        expected = objective(data, pi, cold, U, sign, weights)
        assert objective(data, pi, hot, U, sign, weights) == pytest.approx(expected, abs=tolerance(data, U))


@given(seeds)
@few
def test_without_advantage_the_critic_finds_the_empirical_q(seed: int) -> None:
    cmdp = random_cmdp(seed)
    data = sampled(cmdp, 400, seed)
    pi = random_policy(np.random.default_rng(seed), S, A)
    f = tab.Critic(data, data.reward, 0, tab.Box(5.0), weight=1.0).solve(pi)
    low, high = tab.identification_interval(data, pi, data.reward)
    value = float(data.start @ (pi * f).sum(axis=1))
    assert low - 1e-5 <= value <= high + 1e-5


@given(seeds)
@few
def test_critics_are_pessimistic_on_the_population(seed: int) -> None:
    # Q^pi has no Bellman error, so the minimiser has 2 E + A at most A(Q^pi): a lower bound on J(pi) - J(mu)
    cmdp, rng = random_cmdp(seed), np.random.default_rng(seed)
    mu, pi = random_policy(rng, S, A), random_policy(rng, S, A)
    data = population(cmdp, mu)
    f = tab.Critic(data, data.reward, +1, tab.Box(5.0)).solve(pi)
    gain = (cmdp.returns(pi)[0] - cmdp.returns(mu)[0]) / cmdp.horizon
    assert objective(data, pi, f, data.reward, +1, tab.Box(5.0)) <= gain + 1e-6
    g = tab.Critic(data, data.costs[0], -1, tab.Box(5.0)).solve(pi)
    growth = (cmdp.returns(pi)[1][0] - cmdp.returns(mu)[1][0]) / cmdp.horizon
    assert -objective(data, pi, g, data.costs[0], -1, tab.Box(5.0)) >= growth - 1e-6


@pytest.mark.parametrize("sign", [+1, -1])
def test_pairs_without_data_are_counted_at_their_worst(sign: int) -> None:
    cmdp = random_cmdp(5)
    data = without_pair(sampled(cmdp, 500, 5), 1, 1)
    U = data.reward if sign > 0 else data.costs[0]
    low, high = data.value_box(U)
    f = tab.Critic(data, U, sign).solve(tab.uniform_policy(S, A))
    assert f[1, 1] == pytest.approx(low if sign > 0 else high)


@given(seeds)
@few
def test_true_ends_are_followed_by_nothing(seed: int) -> None:
    # one action that ends the episode: Q is the utility itself, and E_D knows
    rng = np.random.default_rng(seed)
    n = 60
    data = tab.Counts.from_arrays(
        states=[*rng.integers(2, size=n), 0, 1],
        actions=[*rng.integers(2, size=n), 0, 0],
        next_states=np.zeros(n + 2, dtype=int),
        rewards=np.full(n + 2, 0.7),
        costs=np.full(n + 2, 0.3),
        limits=[1.0],
        discount=0.9,
        terminals=np.ones(n + 2),
    )
    pi, f = random_policy(rng, 2, 2), np.full((2, 2), 0.7)
    for weights in (tab.Box(), tab.PerSampleBox(), tab.L2Ball()):
        assert tab.bellman_error(data, pi, f, data.reward, weights) == pytest.approx(0.0, abs=1e-12)
    assert tab.evaluate(data, pi[None], data.costs, "low")[0, 0] == pytest.approx(0.3)
