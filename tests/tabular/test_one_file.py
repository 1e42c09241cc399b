"""A new estimator of J(pi) is one file and a name in a table: Algorithm 1 asks it as it asks ours."""

import numpy as np
import pytest

from slater import tabular as tab
from slater.errors import InputError
from slater.tabular import ope

FILE = '''
"""Importance weights of the log's own pairs: J = H E_D[w C], w the model's occupancy over the log's."""

from dataclasses import dataclass

import numpy as np

from slater.tabular import Counts


@dataclass
class Weighted:
    data: Counts

    def costs(self, policy):
        data = self.data
        model = data.model("pessimistic")
        idle = np.full((2, data.num_actions), 1.0 / data.num_actions)
        occupancy = model.occupancy(np.concatenate([policy, idle]))[: data.num_states]
        w = np.where(data.seen, occupancy / np.where(data.seen, data.distribution, 1.0), 0.0)
        return data.horizon * np.einsum("sa,isa->i", data.distribution * w, data.costs)
'''


def test_one_file_is_an_estimator(tmp_path, monkeypatch):
    (tmp_path / "weighted_estimator.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    from weighted_estimator import Weighted  # type: ignore[import-not-found]

    rng = np.random.default_rng(3)
    cmdp = tab.paper_cmdp(rng)
    data = tab.Counts.sample(cmdp, tab.half_optimal_behaviour(cmdp), 20_000, rng)
    with pytest.raises(InputError, match="model, minimax"):
        tab.PDCA(estimator="weighted").run(data)
    monkeypatch.setitem(ope.ESTIMATORS, "weighted", lambda data, weights, values: Weighted(data))
    # where every pair was seen it is the model's own value, by another road
    assert data.seen.all()
    policy = tab.half_optimal_behaviour(cmdp)
    mine, model = (ope.ESTIMATORS[name](data, tab.Box(), tab.Tabular()) for name in ("weighted", "model"))
    np.testing.assert_allclose(mine.costs(policy), model.costs(policy), rtol=1e-9)
    runs = [tab.PDCA(rounds=50, estimator=name).run(data) for name in ("weighted", "model")]
    np.testing.assert_allclose(runs[0].multipliers, runs[1].multipliers, atol=1e-6)
    J_R, J_C = runs[0].policy.returns(cmdp)
    assert J_R > 0.8 * cmdp.solve().J_R
    assert J_C[0] < 1.1 * cmdp.limits[0]
