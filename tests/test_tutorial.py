"""The tutorial's page says what its commands print; those that take no time are run here, word by word."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path

import pytest

import slater

ROOT = Path(__file__).parent.parent


def script(name: str):
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_commands_on_data_print_what_the_page_says(tmp_path):
    pytest.importorskip("pyarrow", reason="pip install 'slater-rl[tables]'")
    tutorial = script("tutorial")
    found = list(tutorial.steps(tutorial.PAGE.read_text()))
    quick = [step for step in found if "slater data" in step.code or "copy(" in step.code]
    assert len(quick) == 4
    assert all(step.printed.strip() for step in found), "run scripts/tutorial.py"
    for step in quick:
        assert tutorial.run(step, tmp_path) == step.printed


def test_the_page_says_of_its_training_what_the_script_has_for_it():
    tutorial = script("tutorial")
    page = tutorial.PAGE.read_text()
    (now,) = [name for name in tutorial.TRAINED if f"\nslater train {name} room.hdf5" in page]
    assert tutorial.training(page, now) == page
    other = tutorial.training(page, next(name for name in tutorial.TRAINED if name != now))
    assert other != page
    assert tutorial.training(other, now) == page


def test_the_log_of_the_tutorial_is_what_its_script_makes():
    pytest.importorskip("gymnasium", reason="pip install 'slater-rl[envs]'")
    from slater.data.samples import room

    made = script("make_room_log").days(3, 7).splitlines()
    kept = room().read_text().splitlines()
    assert len(kept) == 1 + 200 * 24
    for new, old in zip(made, kept, strict=False):
        for a, b in zip(new.split(","), old.split(","), strict=True):
            # another processor may differ in the last digit that is written
            assert a == b or abs(float(a) - float(b)) < 2e-3


@pytest.mark.parametrize("name", ["first-steps", "exact-world", "greenhouse"])
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "greenhouse":  # as it is written it trains for a minute
        from tests.deep.problems import PDCA_QUICK

        monkeypatch.setattr(slater, "train", partial(slater.train, **PDCA_QUICK))
    notebooks = script("notebooks")
    notebook = json.loads((notebooks.NOTEBOOKS / f"{name}.ipynb").read_text())
    before = [cell.get("outputs") for cell in notebook["cells"]]
    assert sum(map(bool, before)) >= 5, "run scripts/notebooks.py"
    after = notebooks.execute(json.loads(json.dumps(notebook)), name)
    for old, cell in zip(before, after["cells"], strict=True):
        kinds = [output["output_type"] for output in cell.get("outputs", [])]
        assert kinds == [output["output_type"] for output in old or []]
