"""Faults at random moments, by the harness of `tests.crashes`: few here, 200 with SLATER_FULL=1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = os.environ.get("SLATER_FULL") == "1"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness of crashes reads /proc: Linux")
def test_what_was_killed_interrupted_or_left_without_disk_goes_on_to_the_same_bits():
    short = ["--faults", "6", "--only", "store", "train bc"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crashes", *(["--faults", "200"] if FULL else short)],
        capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong" not in done.stdout
