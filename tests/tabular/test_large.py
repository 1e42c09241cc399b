"""Problems beyond the paper's size: sparse from end to end, each answer against its linear program."""

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from slater import InputError
from slater import tabular as tab
from slater.tabular._kernel import Kernel, Resolvent
from slater.tabular.box_critics import BoxCritics
from slater.tabular.ope import evaluate
from slater.tabular.pessimism import affordable, pair_errors, pessimistic, rare_share
from slater.tabular.pooling import best_borrowing, pooled
from tests.tabular.problems import sampled


def large_cmdp(seed: int, states: int = 80, actions: int = 8, costs: int = 1, limit: float = 1.0) -> tab.CMDP:
    """Five successors a pair, one free action a state, discount .9: beyond what the dense path takes."""
    rng = np.random.default_rng(seed)
    pairs = states * actions
    columns = np.argsort(rng.random((pairs, states)), axis=1)[:, :5]
    rows = sparse.csr_array(
        (rng.dirichlet(np.ones(5), size=pairs).ravel(), (np.repeat(np.arange(pairs), 5), columns.ravel())),
        shape=(pairs, states),
    )
    cost = rng.beta(0.3, 0.3, size=(costs, states, actions))
    cost[:, :, 0] *= 0.05
    start = rng.dirichlet(np.ones(states))
    return tab.CMDP(rows, rng.random((states, actions)), cost, np.full(costs, limit), 0.9, start)


@pytest.fixture(scope="module")
def cmdp() -> tab.CMDP:
    return large_cmdp(0)


@pytest.fixture(scope="module")
def data(cmdp: tab.CMDP) -> tab.Counts:
    uniform = tab.uniform_policy(cmdp.num_states, cmdp.num_actions)
    return tab.Counts.sample(cmdp, uniform, 4_000, np.random.default_rng(1))


def test_a_sparse_and_a_dense_kernel_are_the_same_problem(cmdp: tab.CMDP) -> None:
    dense = tab.CMDP(cmdp.transition, cmdp.reward, cmdp.costs, cmdp.limits, cmdp.discount, cmdp.start)
    assert not cmdp.successors.small
    pi = np.random.default_rng(0).dirichlet(np.ones(cmdp.num_actions), size=cmdp.num_states)
    P_pi = np.einsum("sa,sat->st", pi, dense.transition)
    V = np.linalg.solve(np.eye(len(P_pi)) - cmdp.discount * P_pi, (pi * cmdp.reward).sum(axis=1))
    assert np.allclose(cmdp.state_values(pi, cmdp.reward), V, atol=1e-12)
    assert cmdp.occupancy(pi).sum() == pytest.approx(1.0, abs=1e-12)
    assert np.allclose(cmdp.q_values(pi, cmdp.reward), cmdp.reward + cmdp.discount * dense.transition @ V)
    assert dense.returns(pi)[0] == pytest.approx(cmdp.returns(pi)[0], abs=1e-12)


@pytest.mark.parametrize("costs", [0, 1, 2, 3])
def test_policy_iteration_under_the_master_program_is_the_linear_program(costs: int) -> None:
    cmdp = large_cmdp(costs, states=60, actions=5, costs=costs, limit=1.3)
    program, policies = cmdp.solve("linear-program"), cmdp.solve("policy-iteration")
    assert pytest.approx(program.J_R, abs=1e-7) == policies.J_R
    assert np.all(cmdp.limits + 1e-7 >= policies.J_C)
    assert np.allclose(policies.multipliers, program.multipliers, atol=1e-6)
    if costs:
        assert cmdp.closest("policy-iteration")[0] == pytest.approx(
            cmdp.closest("linear-program")[0], abs=1e-7
        )
        assert program.multipliers.max() > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_problems_have_the_same_optimum_both_ways(seed: int) -> None:
    cmdp = tab.paper_cmdp(np.random.default_rng(seed), costs=1 + seed % 2)
    program, policies = cmdp.solve(), cmdp.solve("policy-iteration")
    assert pytest.approx(program.J_R, abs=1e-7) == policies.J_R
    assert np.allclose(policies.J_C, program.J_C, atol=1e-7)
    assert np.allclose(policies.multipliers, program.multipliers, atol=1e-7)


def test_the_optimum_may_be_known_before_the_last_policy_is_found() -> None:
    # the answer to the last multipliers is a policy that was not known and gains less than the tolerance
    reward = [[1.0, 0.0, 0.5 + 5e-11]]
    cmdp = tab.CMDP(np.ones((1, 3, 1)), reward, [[[1.0, 0.0, 0.5]]], [0.5], 0.5)
    solution = cmdp.solve("policy-iteration")
    assert pytest.approx(0.5) == solution.J_R
    assert pytest.approx(0.5) == solution.J_C


@pytest.mark.parametrize("name", ["pdca", "exactly-feasible", "plugin", "mbcl"])
@pytest.mark.parametrize("seed", range(2))
def test_whole_algorithms_are_the_same_on_both_paths(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's problems: linear programs on one side, the structure of large problems on the other."""
    cmdp = tab.paper_cmdp(np.random.default_rng(seed), costs=1 + seed % 2)
    data = sampled(cmdp, 500, seed)
    game = {"rounds": 25, "step": 20.0, "weights": tab.Box(5.0), "covered": False, "mixture": "tail"}
    same = tab.PDCA(pooling=0.0, pessimism=0.0, **game)  # type: ignore[arg-type]
    algorithm = {
        "pdca": same,
        "exactly-feasible": dataclasses.replace(
            same, mode="exactly-feasible", multiplier_bound=20.0, mixture="lp"
        ),
        "plugin": tab.PlugIn(),
        "mbcl": tab.MBCL(rounds=25),
    }[name]
    program = algorithm.run(data)
    monkeypatch.setattr("slater.tabular._kernel.SMALL", 0)
    structure = algorithm.run(dataclasses.replace(data))
    assert not dataclasses.replace(data).successors.small
    if name in ("pdca", "exactly-feasible"):
        assert np.all(structure.trace["critic_gap"] >= 0.0)  # NaN on the path of the linear programs
        assert np.isnan(program.trace["critic_gap"]).all()
    assert np.allclose(structure.policy.members, program.policy.members, atol=1e-7)
    assert np.allclose(structure.multipliers, program.multipliers, atol=1e-7)
    for ours, theirs in zip(structure.policy.returns(cmdp), program.policy.returns(cmdp), strict=True):
        assert np.allclose(ours, theirs, atol=1e-7)


def test_limits_out_of_reach_are_refused_with_the_excess_of_the_linear_program(cmdp: tab.CMDP) -> None:
    strict = cmdp.with_limits(np.zeros(1))
    with pytest.raises(tab.Infeasible) as refused:
        strict.solve()
    assert refused.value.excess == pytest.approx(strict.closest("linear-program")[0], abs=1e-7)


def test_an_unknown_method_is_refused(cmdp: tab.CMDP) -> None:
    with pytest.raises(InputError, match="choose one of auto"):
        cmdp.solve("simplex")  # type: ignore[arg-type]


@pytest.mark.parametrize("transposed", [False, True])
def test_iterated_solutions_keep_their_certificate(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    P = sparse.random_array((300, 300), density=0.02, rng=rng).tocsr()
    P = sparse.csr_array(P / np.maximum(np.asarray(P.sum(axis=1)).ravel(), 1e-300)[:, None])
    right = rng.random((300, 2))
    dense = Resolvent(P, 0.99)
    expected = dense.flows(right) if transposed else dense.values(right)
    monkeypatch.setattr("slater.tabular._kernel.DENSE_STATES", 10)
    iterated = Resolvent(P, 0.99)
    got = iterated.flows(right) if transposed else iterated.values(right)
    assert np.allclose(got, expected, rtol=1e-10, atol=1e-10)


def test_draws_follow_the_rows() -> None:
    kernel = Kernel(sparse.csr_array([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0], [0.5, 0.0, 0.5]]), 1)
    pairs = np.repeat([0, 1, 2], 40_000)
    drawn = kernel.draw(pairs, np.random.default_rng(0))
    for pair in range(3):
        share = np.bincount(drawn[pairs == pair], minlength=3) / 40_000
        assert np.allclose(share, kernel.rows.toarray()[pair], atol=0.01)
        assert np.all((share > 0) == (kernel.rows.toarray()[pair] > 0))


def test_rollouts_follow_the_model(cmdp: tab.CMDP) -> None:
    pi = tab.uniform_policy(cmdp.num_states, cmdp.num_actions)
    rolled = tab.Counts.rollout(cmdp, pi, 3_000, 40, np.random.default_rng(0), discounted=True)
    assert rolled.size == 120_000
    share = rolled.pair_counts.sum(axis=1) / rolled.pair_counts.sum()
    assert np.allclose(share, cmdp.occupancy(pi).sum(axis=1), atol=0.01)


def loss(
    data: tab.Counts, pi: np.ndarray, f: np.ndarray, utility: np.ndarray, sign: int, bound: float
) -> float:
    """What a critic minimises."""
    error = tab.bellman_error(data, pi, f, utility, tab.Box(bound))
    return 2 * error + sign * tab.advantage(data, pi, f)


@pytest.mark.parametrize("bound", [1.0, 5.0])
def test_structured_critics_solve_the_linear_programs(bound: float) -> None:
    for seed in range(3):
        small = sampled(tab.paper_cmdp(np.random.default_rng(seed)), 120, seed)
        utilities, signs = np.concatenate([small.reward[None], small.costs]), [1, -1]
        structured = BoxCritics(small, utilities, signs, bound)
        rng = np.random.default_rng(seed)
        for sharpness in (1.0, 0.1, 0.02):
            pi = rng.dirichlet(np.full(5, sharpness), size=10)
            f, gaps = structured.solve(pi)
            assert np.all(gaps <= 1e-7)
            for j, (utility, sign) in enumerate(zip(utilities, signs, strict=True)):
                program = tab.Critic(small, utility, sign, tab.Box(bound)).solve(pi)

                low, high = small.value_box(utility)
                assert np.all((f[j] >= low - 1e-12) & (f[j] <= high + 1e-12))
                # the program's tie-break moves it by up to 1e-6 a pair and unit of value; ours has none
                ours, theirs = (loss(small, pi, values, utility, sign, bound) for values in (f[j], program))
                assert ours <= theirs + 1e-7
                assert ours == pytest.approx(theirs, abs=1e-6 * 5 * 50)


def test_the_reported_gap_bounds_the_programs_error(
    data: tab.Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    pi = np.random.default_rng(5).dirichlet(np.full(data.num_actions, 0.05), size=data.num_states)
    utilities = np.concatenate([data.reward[None], data.costs])
    exact, gap = BoxCritics(data, utilities, [1, -1], 2.0).solve(pi)
    assert np.all(gap <= 1e-6)
    monkeypatch.setattr("slater.tabular.box_critics.MOST_TANGENTS", 3)
    rough, bounds = BoxCritics(data, utilities, [1, -1], 2.0).solve(pi)
    for j, sign in enumerate((1, -1)):
        losses = [loss(data, pi, f[j], utilities[j], sign, 2.0) for f in (rough, exact)]
        assert losses[0] - losses[1] <= bounds[j] + 1e-9
    assert bounds.max() > 1e-6


def test_rare_starts_are_left_out_and_their_share_is_said(cmdp: tab.CMDP, data: tab.Counts) -> None:
    arrays = {"states": [0, 1, 0], "actions": [0, 0, 1], "next_states": [1, 0, 0], "rewards": [0, 1, 0]}
    log = tab.Counts.from_arrays(
        **arrays, costs=[0, 0, 1], limits=[1.0], discount=0.9, start=[0.5, 0.2, 0.3], num_states=3
    )
    assert log.starts_left_out == pytest.approx(0.3)
    assert log.coverage.starts_left_out == pytest.approx(0.3)
    assert np.allclose(log.start, [5 / 7, 2 / 7, 0.0])
    assert data.starts_left_out == 0.0


def test_pair_errors_fall_with_the_root_of_the_visits(data: tab.Counts) -> None:
    utilities = np.concatenate([data.reward[None], data.costs])
    errors = pair_errors(data, utilities)
    assert np.all(errors[:, ~data.seen] == 0.0)
    assert np.all(errors[:, data.seen] > 0.0)
    few, many = data.pair_counts == 2, data.pair_counts >= 12
    assert errors[0][many].mean() < 0.6 * errors[0][few].mean()


def test_pessimism_is_on_the_cautious_side_and_as_much_as_the_limits_bear(data: tab.Counts) -> None:
    cautious = pessimistic(data, 1.0)
    pi = data.behaviour[None]
    assert evaluate(cautious, pi, cautious.costs, "high")[0, 0] > evaluate(data, pi, data.costs, "high")[0, 0]
    assert (
        evaluate(cautious, pi, cautious.reward[None], "low")[0, 0]
        < evaluate(data, pi, data.reward[None], "low")[0, 0]
    )
    strength = affordable(data, data.limits, 4.0)
    assert 0.0 < strength <= 4.0
    assert pessimistic(data, strength).model().closest()[0] <= 1e-9
    with pytest.raises(InputError, match="standard errors"):
        pessimistic(data, -1.0)


def test_rare_rows_lean_on_their_state_and_common_ones_do_not(data: tab.Counts) -> None:
    assert best_borrowing(data) == 0.0  # each action leads elsewhere
    assert pooled(data) is data
    leaning = pooled(data, 3.0)
    assert np.allclose(leaning.pair_counts, data.pair_counts)
    N = data.pair_counts[0, 0]
    state = data.transition_counts.toarray().reshape(*data.ends.shape, -1)[0].sum(axis=0)
    expected = (data.transition_counts.toarray()[0] + 3.0 * state / state.sum()) / (N + 3.0)
    assert np.allclose(leaning.successors.rows.toarray()[0], expected)
    assert np.array_equal(leaning.seen, data.seen)
    assert np.all(pair_errors(leaning, data.costs)[:, data.seen] > 0.0)
    with pytest.raises(InputError, match="pooled already"):
        pooled(leaning)
    with pytest.raises(InputError, match="borrowed visits"):
        pooled(data, -1.0)


def test_where_actions_make_no_difference_pooling_finds_it_and_halves_the_error() -> None:
    rng = np.random.default_rng(0)
    states, actions = 60, 10
    rows = np.repeat(rng.dirichlet(np.full(8, 1.0), size=states), actions, axis=0)
    columns = np.repeat(np.argsort(rng.random((states, states)), axis=1)[:, :8], actions, axis=0)
    flat = np.zeros((states * actions, states))
    np.put_along_axis(flat, columns, rows, axis=1)
    cost = rng.random((1, states, actions))
    cmdp = tab.CMDP(flat.reshape(states, actions, states), cost[0], cost, [5.0], 0.9, np.full(states, 1 / 60))
    data = tab.Counts.sample(cmdp, tab.uniform_policy(states, actions), 3_000, rng)
    leaning = pooled(data)
    assert leaning.borrowed >= 100.0

    def error(of: tab.Counts) -> float:
        return float(np.abs(of.successors.rows.toarray() - flat)[data.seen.ravel()].sum(axis=1).mean())

    assert error(leaning) < 0.5 * error(data)


def test_the_ends_of_episodes_are_pooled_too() -> None:
    steps = {"states": [0, 0, 0, 1], "actions": [0, 0, 1, 0], "next_states": [1, 1, 0, 1]}
    data = tab.Counts.from_arrays(
        **steps, terminals=[0, 0, 1, 1], rewards=np.ones(4), costs=np.ones(4), limits=[1.0], discount=0.9
    )
    leaning = pooled(data, 1.0)
    assert np.allclose(leaning.pair_counts, data.pair_counts)
    assert leaning.ends[0] == pytest.approx([2 * (1 / 3) / 3, (1 + 1 / 3) / 2])
    assert leaning.ends[1, 0] == pytest.approx(1.0)


def test_pdca_on_a_large_problem(cmdp: tab.CMDP, data: tab.Counts) -> None:
    result = tab.PDCA(rounds=60).run(data)
    best = cmdp.solve()
    J_R, J_C = result.policy.returns(cmdp)
    assert np.all(1.1 * cmdp.limits >= J_C)
    assert J_R >= 0.85 * best.J_R
    assert np.all(result.trace["critic_gap"] <= 1e-6)
    assert any("pessimism" in note for note in result.notes)
    # it keeps to what is covered
    assert np.all(result.policy.members[:, ~data.seen & (data.state_counts > 0)[:, None]] == 0.0)
    share = rare_share(data, result.policy, 5)
    assert 0.0 <= share <= rare_share(data, result.policy, 50) <= 1.0


@pytest.mark.parametrize("name", sorted(tab.ALGORITHMS))
def test_every_algorithm_runs_on_a_large_problem(name: str, cmdp: tab.CMDP, data: tab.Counts) -> None:
    if name == "pdca":
        pytest.skip("has a test of its own")
    result = (tab.ACrab(rounds=20) if name == "acrab" else tab.ALGORITHMS[name]()).run(data)
    J_R, _ = result.policy.returns(cmdp)
    assert cmdp.returns(tab.uniform_policy(cmdp.num_states, cmdp.num_actions))[0] < J_R
    certificate = tab.estimate_certificate(data, result.policy, result.multipliers, result.multiplier_bound)
    assert certificate.gap >= -1e-6
