"""PDOCRL and WSAC, what became of PDCA's theory: each claim against the exact optimum or the exact truth."""

import numpy as np
import pytest

from slater import tabular as tab
from slater.errors import InputError
from slater.tabular.pdocrl import _values_in_reach

from .problems import deterministic_policies, population, random_cmdp, random_policy

SIX = range(6)


def problem(kind: str, seed: int, costs: int = 1) -> tuple[tab.CMDP, tab.Solution, tab.Counts]:
    """A problem of 10 states and 5 actions, discount .8, and what infinitely much half-optimal data say."""
    rng = np.random.default_rng(seed)
    cmdp = tab.GENERATORS[kind](rng, **({} if kind == "coptidice" else {"costs": costs}))
    best = cmdp.solve()
    return cmdp, best, population(cmdp, tab.half_optimal_behaviour(cmdp, best))


# -- PDOCRL ---------------------------------------------------------------------------------------


#: six kinds of problem: rounds, and the least share of the best reward in any of six draws
KINDS = {
    ("paper", 1): (2000, 0.98), ("paper", 2): (2000, 0.98), ("paper", 3): (8000, 0.96),
    ("sparse", 1): (2000, 0.98), ("sparse", 2): (2000, 0.98), ("coptidice", 1): (8000, 0.98),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "costs"), KINDS)
def test_pdocrl_reaches_the_optimum_on_its_limits(kind: str, costs: int) -> None:
    """At 1.02 of every limit or less: .98 of the best reward on average, in each draw but of three costs."""
    rounds, least = KINDS[kind, costs]
    shares = []
    for seed in SIX:
        cmdp, best, data = problem(kind, seed, costs)
        result = tab.PDOCRL(rounds=rounds).run(data)
        J_R, J_C = result.policy.returns(cmdp)
        assert least * best.J_R <= J_R, seed
        assert np.all(J_C / cmdp.limits <= 1.02), seed
        assert result.multiplier_bound > best.multipliers.sum()
        shares.append([J_R / best.J_R, np.max(J_C / cmdp.limits)])
    print(kind, costs, "mean, least, most:", *(f(shares, axis=0).round(3) for f in (np.mean, np.min, np.max)))
    assert np.mean(shares, axis=0)[0] >= 0.98


def test_a_lambda_that_sees_the_log_is_pinned_and_one_that_sees_the_weights_lags() -> None:
    shares: dict[str, list[tuple[float, float, float]]] = {"policy": [], "weights": [], "data": []}
    for seed in SIX:
        cmdp, best, data = problem("sparse", seed)
        for sees, rows in shares.items():
            result = tab.PDOCRL(multiplier_bound=5.0, lambda_sees=sees).run(data)  # type: ignore[arg-type]
            J_R, J_C = result.policy.returns(cmdp)
            rows.append((J_R / best.J_R, J_C[0] / cmdp.limits[0], result.multipliers[0]))
            if sees == "data":  # the mean cost of the log is all that decides: lambda never moves
                over = float(np.sum(data.distribution * data.costs[0])) * data.horizon > cmdp.limits[0]
                assert set(result.trace["multipliers"][:, 0]) == {5.0 if over else 0.0}
    policy, weights, log = (np.mean(shares[sees], axis=0) for sees in ("policy", "weights", "data"))
    assert policy[0] > 0.98
    assert policy[1] == pytest.approx(1.0, abs=0.06)
    assert log[2] > 4.0  # lambda* is .5
    assert log[1] < 0.5  # at a quarter of what it was allowed to cost
    assert log[0] < weights[0] < policy[0]


def test_the_released_lambda_ends_at_the_wrong_end_when_the_log_is_cheap() -> None:
    # the same mistake in the other direction: a cautious log and a limit that binds
    cmdp, _, _ = problem("sparse", 0)
    safest = cmdp.best_response(np.array([1e3]))[0]
    data = population(cmdp, 0.9 * safest + 0.1 / cmdp.num_actions)
    assert np.sum(data.distribution * data.costs[0]) * data.horizon < cmdp.limits[0]
    released = tab.PDOCRL.preset("released", rounds=1000).run(data)
    assert np.all(released.trace["multipliers"] == 0)
    assert released.policy.returns(cmdp)[1][0] > 1.5 * cmdp.limits[0]
    assert tab.PDOCRL(rounds=1000).run(data).policy.returns(cmdp)[1][0] <= 1.02 * cmdp.limits[0]
    with pytest.raises(InputError, match="only one is released"):
        tab.PDOCRL.preset("paper")  # type: ignore[arg-type]


def test_the_values_in_reach_hold_those_of_every_policy_and_no_more() -> None:
    cmdp = random_cmdp(3)
    data = population(cmdp, tab.uniform_policy(3, 2))
    least, most = _values_in_reach(data)
    for k, utility in enumerate((cmdp.reward, *cmdp.costs)):
        Q = np.array([cmdp.q_values(pi, utility) for pi in deterministic_policies(3, 2)])
        assert Q.min(axis=0) == pytest.approx(least[k], abs=1e-8)
        assert Q.max(axis=0) == pytest.approx(most[k], abs=1e-8)


@pytest.mark.parametrize("settings", [{"rounds": 0}, {"lambda_sees": "w"}, {"weight_step": 0.0}])
def test_pdocrl_refuses_settings_that_mean_nothing(settings: dict[str, object]) -> None:
    data = population(random_cmdp(1), tab.uniform_policy(3, 2))
    with pytest.raises(InputError, match=next(iter(settings))):
        tab.PDOCRL(**settings).run(data)  # type: ignore[arg-type]


# -- WSAC -----------------------------------------------------------------------------------------


def hidden_cost() -> tuple[tab.CMDP, np.ndarray]:
    """Work, then rest for ever. Resting differently is never logged, earns as little, and costs 1 a step."""
    transition = np.zeros((2, 2, 2))
    transition[:, :, 1] = 1.0
    cmdp = tab.CMDP(transition, [[0.2, 1.0], [0.0, 0.0]], [[[0.1, 0.1], [0.0, 1.0]]], [0.5], 0.8)
    return cmdp, np.array([[0.5, 0.5], [1.0, 0.0]])


def test_wsac_improves_where_pdca_needs_estimates_of_policies_that_the_log_does_not_cover() -> None:
    cmdp, reference = hidden_cost()
    data = tab.Counts.sample(cmdp, reference, 500, np.random.default_rng(0))
    J_R, J_C = cmdp.returns(reference)
    # the paper's oracle is free to say 0 of a pair without data, so PDCA sees no cost and goes on resting so
    pdca = tab.PDCA(estimator="minimax", rounds=100).run(data)
    assert pdca.policy.returns(cmdp)[1][0] > 2.0 > cmdp.limits[0]
    for level in ("reference", "limits"):
        wsac = tab.WSAC(level=level).run(data)  # type: ignore[arg-type]
        reward, cost = wsac.policy.returns(cmdp)
        assert reward > max(J_R + 0.3, 0.9 * cmdp.solve().J_R)
        assert cost[0] <= J_C[0] + 1e-9
    # ours fills such pairs with the worst instead, and keeps the limit too
    assert tab.PDCA(rounds=100).run(data).policy.returns(cmdp)[1][0] <= cmdp.limits[0]


@pytest.mark.parametrize("beta", [0.1, 2.0, 20.0])
def test_wsac_improves_on_any_reference_at_its_level_for_every_beta(beta: float) -> None:
    gained = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        cmdp = tab.paper_cmdp(rng)
        reference = random_policy(rng, cmdp.num_states, cmdp.num_actions)
        J_R, J_C = cmdp.returns(reference)
        data = population(cmdp, reference)
        result = tab.WSAC(level="reference", bellman_weight=beta, step=1.0).run(data)
        reward, cost = result.policy.returns(cmdp)
        assert reward >= J_R
        assert np.all(cost <= J_C)
        # a critic that minimises its objective errs to the cautious side, for every member
        worst = result.trace["estimated_excess"]
        true = np.array([cmdp.returns(pi)[1] for pi in result.policy.members]) - J_C
        assert np.all(true <= worst + 1e-6)
        gained.append(reward - J_R)
    assert np.mean(gained) > 0.02


def test_wsac_serves_the_limits_where_the_reference_keeps_them_and_says_so_where_not() -> None:
    rng = np.random.default_rng(3)
    cmdp = tab.paper_cmdp(rng)
    best = cmdp.solve()
    data = population(cmdp, tab.half_optimal_behaviour(cmdp, best, 0.9))
    costs = data.horizon * np.sum(data.distribution * data.costs[0])
    within = tab.WSAC(rounds=400).run(data, [costs + 0.2])
    J_R, J_C = within.policy.returns(cmdp)
    at_level = tab.WSAC(rounds=400, level="reference").run(data).policy.returns(cmdp)
    assert not within.notes
    assert J_C[0] <= costs + 0.2
    assert J_R - at_level[0] > 0
    assert at_level[1][0] <= costs * 1.01
    assert "above limit 0" in tab.WSAC(rounds=5).run(data, [0.9 * costs]).notes[-1]


@pytest.mark.parametrize(
    "settings", [{"rounds": 0}, {"level": "tau"}, {"bellman_weight": 0.0}, {"multiplier": -1.0}]
)
def test_wsac_refuses_settings_that_mean_nothing(settings: dict[str, object]) -> None:
    data = population(random_cmdp(1), tab.uniform_policy(3, 2))
    with pytest.raises(InputError, match=next(iter(settings))):
        tab.WSAC(**settings).run(data)  # type: ignore[arg-type]
