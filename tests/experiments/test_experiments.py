"""The experiments: their problems are what they claim, and a small run writes all it promises."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from slater.experiments import figure1, incomplete, rates
from slater.report.curves import fit_slope, summarise


@pytest.mark.parametrize("family", ["random", "hard"])
def test_class_is_realisable_but_not_complete(family: str) -> None:
    rng = np.random.default_rng(1)
    problem = incomplete.draw_problem(rng, family)
    cmdp, Phi = problem.cmdp, problem.features.reshape(-1, problem.features.shape[2])

    def outside(f: np.ndarray) -> float:
        return float(np.abs(f.ravel() - Phi @ np.linalg.lstsq(Phi, f.ravel(), rcond=None)[0]).max())

    for _ in range(20):
        policy = rng.dirichlet(np.ones(cmdp.num_actions), size=cmdp.num_states)
        for utility in (cmdp.reward, cmdp.costs[0]):
            assert outside(cmdp.q_values(policy, utility)) < 1e-8 * cmdp.horizon
    f = (Phi @ rng.normal(size=Phi.shape[1])).reshape(cmdp.reward.shape)
    image = cmdp.reward + cmdp.discount * cmdp.transition @ np.einsum("sa,sa->s", policy, f)
    assert outside(image) > 1e-3
    assert (problem.radius > incomplete.EXPANSION) == (family == "hard")
    assert cmdp.solve().multipliers[0] > 0


def test_hard_problems_make_fitted_evaluation_diverge() -> None:
    problem = incomplete.draw_problem(np.random.default_rng(1), "hard")
    cmdp = problem.cmdp
    Phi = problem.features.reshape(-1, problem.features.shape[2])
    weighted = Phi * cmdp.occupancy(problem.behaviour).ravel()[:, None]
    project = np.linalg.pinv(weighted.T @ Phi) @ weighted.T
    grew = False
    for a in range(cmdp.num_actions):
        for b in range(cmdp.num_actions):
            theta = np.ones(Phi.shape[1])
            policy = np.full(cmdp.reward.shape, 1 / cmdp.num_actions)
            policy[0], policy[1] = np.eye(cmdp.num_actions)[a], np.eye(cmdp.num_actions)[b]
            for _ in range(600):
                V = np.einsum("sa,sa->s", policy, (Phi @ theta).reshape(policy.shape))
                theta = project @ (cmdp.discount * cmdp.transition @ V).ravel()
            grew |= bool(np.abs(theta).max() > 1e3)
    assert grew


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_figure1_writes_all_it_promises(tmp_path: Path) -> None:
    figure1.run(tmp_path / "f", quick=True, repeats=1, workers=2)
    for name in ("figure1.png", "figure1.svg", "figure1.csv", "settings.json", "cells.jsonl"):
        assert (tmp_path / "f" / name).stat().st_size > 100
    rows = read(tmp_path / "f" / "figure1.csv")
    assert {row["algorithm"] for row in rows} >= {"pdca", "mbcl", "coptidice", "plugin"}
    assert json.loads((tmp_path / "f" / "settings.json").read_text())["settings"]["repeats"] == 1


def test_oracle_choice_prefers_the_feasible() -> None:
    assert figure1._best_outcome([(1.2, 1.1), (0.9, 0.8), (0.95, 1.0)]) == (0.95, 1.0)
    assert figure1._best_outcome([(1.2, 1.3), (1.1, 1.2)]) == (1.1, 1.2)


def test_rates_cell_measures_errors() -> None:
    row = rates.cell({"tightened": False, "n": 3000, "seed": 1, "rounds": 60})
    assert row["suboptimality"] >= 0
    assert row["violation"] >= 0
    assert row["combined"] >= row["suboptimality"]


def test_slope_of_a_power_law() -> None:
    rows = [{"n": n, "e": 3.0 * n**-0.5} for n in (10, 100, 1000)]
    assert fit_slope(rows, "e") == pytest.approx(-0.5)
    assert np.isnan(fit_slope(rows[:1], "e"))


def test_summary_has_mean_and_standard_error() -> None:
    rows = [{"a": 1, "v": 1.0}, {"a": 1, "v": 3.0}, {"a": 2, "v": 5.0}]
    first, second = summarise(rows, by=("a",), values=("v",))
    assert (first["v_mean"], first["v_se"]) == (2.0, 1.0)
    assert (second["v_mean"], second["v_se"], second["repeats"]) == (5.0, 0.0, 1)
