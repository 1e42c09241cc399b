"""The site builds strictly, from the files of the repository alone, and its generated pages are whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytest.importorskip("mkdocs", reason="pip install 'slater-rl[docs]'")


def test_the_site_builds_strictly_and_names_every_command_and_algorithm(tmp_path):
    from slater.cli import COMMANDS
    from slater.deep import algorithms

    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    commands = (tmp_path / "reference" / "commands.html").read_text()
    assert all(f"slater {name}" in commands for name in COMMANDS)
    for name in algorithms():
        page = (tmp_path / "algorithms" / f"{name}.html").read_text()
        assert "gradient iterations" in page, f"the page of {name} lacks its settings"
        assert "{{" not in page
