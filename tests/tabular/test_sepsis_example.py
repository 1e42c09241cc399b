"""The example on ICU-Sepsis, in a reduced form."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from slater import tabular as tab

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("icu_sepsis") is None,
    reason="icu-sepsis is missing: pip install --no-deps icu-sepsis",
)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "sepsis" / "run.py"
    spec = importlib.util.spec_from_file_location("sepsis_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_example_runs_goes_on_where_it_was_and_draws(example: ModuleType, tmp_path: Path) -> None:
    names = ["pdca", "plugin", "plugin, data as pdca"]
    example.measure("patients", [300], [0], names[:2], 4, tmp_path)
    example.measure("patients", [300], [0], names, 4, tmp_path)
    rows = example.rows(tmp_path)
    assert [row["algorithm"] for row in rows] == names
    for row in rows:
        assert 0.5 < row["reward"] < 1.5
        assert len(row["costs"]) == 2
        assert 0.0 <= row["rare_share"] <= 1.0
        # 300 patients leave out rare starts and do not stop the run
        assert 0.0 < row["starts_left_out"] < 0.5
    assert rows[0]["critic_gap"] < 1e-5
    assert "| patients | 300 | pdca |" in example.table(rows)
    example.draw(rows, tmp_path / "sepsis.png")
    assert (tmp_path / "sepsis.png").stat().st_size > 1000


def test_the_optimum_is_that_of_the_issue(example: ModuleType) -> None:
    cmdp, physicians = example.sepsis("fluids")
    assert cmdp.returns(physicians)[1][0] == pytest.approx(3.07, abs=0.005)
    best = cmdp.solve()
    assert np.all(cmdp.limits + 1e-7 >= best.J_C)
    # weak duality: no multiplier promises less than the optimum
    upper = cmdp.best_response(best.multipliers)[1] + float(best.multipliers @ cmdp.limits)
    assert upper == pytest.approx(best.J_R, abs=1e-7)
    assert isinstance(best, tab.Solution)
