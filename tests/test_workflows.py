"""What runs in the project's name elsewhere is pinned: an action by its commit, with leave to read alone."""

import re
from pathlib import Path

import pytest

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
