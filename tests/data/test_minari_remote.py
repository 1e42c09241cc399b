"""What the real minari package downloads from a hub of Hugging Face, here on this machine, in both storages.

The server speaks as much of the hub's protocol as `minari download` asks for. What it cannot show is that the
hub itself still answers so.
"""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from slater.data import load
from tests.data.make import walk

minari = pytest.importorskip("minari", reason="pip install 'slater-rl[minari]'")
pytest.importorskip("huggingface_hub", reason="pip install 'slater-rl[minari]'")
pytest.importorskip("pyarrow", reason="pip install 'slater-rl[tables]'")

COMMIT, OWNER = "0" * 39 + "1", "makers"


class Hub(BaseHTTPRequestHandler):
    """Datasets under a folder, `owner/name/...`, as the hub serves them."""

    folder: Path

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def log_message(self, *_):
        pass

    def _answer(self, *, body):
        path = unquote(urlsplit(self.path).path).strip("/")
        if path == "api/datasets":
            found = sorted(p.name for p in (self.folder / OWNER).iterdir())
            return self._send(json.dumps([{"id": f"{OWNER}/{name}"} for name in found]).encode(), body)
        kind, _, rest = path.partition("datasets/")
        owner, name, what, _, *inside = *rest.split("/"), "", "", "", ""
        repo = self.folder / owner / name
        files = sorted(p.relative_to(repo).as_posix() for p in repo.rglob("*") if p.is_file())
        if kind == "api/" and what == "tree":
            entries = [
                {"type": "file", "path": f, "size": (repo / f).stat().st_size, "oid": COMMIT} for f in files
            ]
            return self._send(json.dumps(entries).encode(), body)
        if kind == "api/":
            record = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}
            return self._send(json.dumps(record).encode(), body)
        wanted = "/".join(inside).strip("/")
        if wanted in files:
            return self._send((repo / wanted).read_bytes(), body)
        return self._send(b"", body, status=404, extra={"X-Error-Code": "EntryNotFound"})

    def _send(self, content, body, status=200, extra=None):
        self.send_response(status)
        headers = {"Content-Length": len(content), "ETag": f'"{hash(content):x}"', "X-Repo-Commit": COMMIT}
        for key, value in {**headers, **(extra or {})}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path):
    """The address of a hub, and the folder that it serves."""
    folder = tmp_path / "hub"
    (folder / OWNER).mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Hub,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
def test_what_minari_downloads_from_a_hub_is_read(tmp_path, hub, monkeypatch, storage):
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    address, served = hub
    data = walk()
    episodes = []
    for number, (start, stop) in enumerate(zip(data.episodes.starts, data.episodes.stops, strict=True)):
        last = data.next_observations[stop - 1 : stop]
        episodes.append(
            EpisodeBuffer(
                id=number, observations=np.concatenate([data.observations[start:stop], last]),
                actions=data.actions[start:stop], rewards=data.rewards[start:stop],
                terminations=data.terminals[start:stop] > 0, truncations=data.timeouts[start:stop] > 0,
                infos={"cost": [0.0, *data.costs[start:stop, 0].tolist()]},  # as its collector keeps them
            )
        )  # fmt: skip
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(served / OWNER))
    minari.create_dataset_from_buffers(
        "bakery/oven-v0", episodes, data_format=storage,
        observation_space=spaces.Box(-np.inf, np.inf, (data.observation_dim,), dtype=np.float32),
        action_space=spaces.Box(-1, 1, (data.action_dim,), dtype=np.float32),
    )  # fmt: skip
    (served / OWNER / "bakery" / "namespace_metadata.json").write_text('{"datasets": ["bakery/oven-v0"]}')
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here))
    for name, value in (
        ("HF_ENDPOINT", address),
        ("HF_HOME", str(tmp_path / "cache")),
        ("MINARI_REMOTE", f"hf://{OWNER}"),
        ("HF_HUB_OFFLINE", "0"),
    ):
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    # the address is read when the package of the hub is imported, so in a process of its own
    program = "import minari, sys; minari.download_dataset(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, "bakery/oven-v0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = load("minari:bakery/oven-v0")
    np.testing.assert_array_equal(read.observations, data.observations)
    np.testing.assert_array_equal(read.actions, data.actions)
    np.testing.assert_allclose(read.rewards, data.rewards, rtol=1e-6)
    np.testing.assert_allclose(read.costs[:, 0], data.costs[:, 0], rtol=1e-6)
    np.testing.assert_array_equal(read.episodes.lengths, data.episodes.lengths)
    np.testing.assert_array_equal(read.terminals, data.terminals)
