"""What is fetched in the project's name is pinned: actions by commit, packages by versions that agree."""

import re
from pathlib import Path

import pytest

from tests.test_tutorial import script

yaml = pytest.importorskip("yaml", reason="pip install 'slater-rl[docs]'")
FILES = sorted((Path(__file__).parents[1] / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_of_a_commit_and_may_only_read(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "permissions" not in job
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", step["uses"]), step["uses"]


def test_there_are_workflows():
    assert FILES


def test_pinned_versions_can_be_installed_together():
    """What `make` asks pip for, by what the packages here ask for themselves."""
    constraints = script("constraints")
    pins = constraints.read_pins(Path(__file__).parents[1] / "constraints.txt")
    assert constraints.conflicts(pins) == []
    assert any("numpy" in text for text in constraints.conflicts({**pins, "numpy": "1.0"}))
    del pins["pandas"]
    assert any("pandas" in text and "not pinned" in text for text in constraints.conflicts(pins))
