"""DSRL's own files by one word, from a server on this machine with a file of the published layout."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

from slater import cli
from slater.data.tasks import TASKS
from slater.errors import InputError
from slater.experiments.task_data import PUBLISHED, find_task_data

BALL = TASKS["BallRun"]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _write(path: Path) -> None:
    """As many episodes as the published file has, of its widths, in its layout."""
    rows, rng = BALL.trajectories * BALL.horizon, np.random.default_rng(0)
    ends = np.arange(rows) % BALL.horizon == BALL.horizon - 1
    with h5py.File(path, "w") as file:
        for name, width in (("observations", 7), ("next_observations", 7), ("actions", 2)):
            file[name] = rng.uniform(-1.0, 1.0, (rows, width)).astype(np.float32)
        file["rewards"] = rng.uniform(0.0, 1.0, rows).astype(np.float32)
        file["costs"] = (rng.uniform(size=rows) < 0.1).astype(np.float32)
        file["terminals"], file["timeouts"] = np.zeros(rows, bool), ends


def test_the_published_file_is_fetched_once_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server").mkdir()
    _write(tmp_path / "server" / BALL.file)
    handler = functools.partial(_Quiet, directory=str(tmp_path / "server"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("SLATER_DSRL_URL", f"http://127.0.0.1:{server.server_address[1]}/")
        monkeypatch.setenv("SLATER_DATA", str(tmp_path / "data"))
        ((found,), left_out) = find_task_data(["BallRun"], PUBLISHED)
        server.shutdown()
    assert (found.kind, found.episodes, found.horizon, left_out) == ("DSRL", 940, 100, [])
    assert Path(found.path) == tmp_path / "data" / BALL.file
    assert find_task_data(["BallRun"], PUBLISHED)[0] == [found]  # without the server
    with pytest.raises(InputError, match="DSRL has no data of walker"):
        find_task_data(["walker"], PUBLISHED)
    words = ["reproduce", "table2", "--data", "dsrl", "--tasks", "CarRun", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 2
    assert "connect to a network and run this again" in capsys.readouterr().err
