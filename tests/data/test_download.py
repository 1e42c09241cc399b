"""Downloads by task name, against a server on this machine."""

import hashlib
import http.server
import threading

import h5py
import pytest

from slater.data.download import SERVER, fetch, locate
from slater.data.tasks import TASKS, PublishedTask, task_of_file
from slater.errors import InputError

from .make import walk

TASK = PublishedTask("Tiny", "SafetyTiny-v0-5-6.hdf5", 10, 6, 3, 2)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one file with ranges; `server.cut` ends a response early, once."""

    def do_GET(self):
        content, requests = self.server.content, self.server.requests
        requests.append(self.headers.get("Range"))
        self.server.paths.append(self.path)
        if self.server.elsewhere and "/store/" not in self.path:  # the answer says where, and what it will be
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere + "store/" + TASK.file)
            for name, value in self.server.said.items():
                self.send_header(name, value)
            self.end_headers()
            return
        if not self.path.endswith(TASK.file):
            self.send_error(404)
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop, self.server.cut = self.server.cut or len(content), None
        self.wfile.write(content[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def content(tmp_path):
    data = walk(episodes=6)
    path = tmp_path / "made.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
            file.create_dataset(name, data=getattr(data, name), compression="gzip")
        file.create_dataset("costs", data=data.costs[:, 0], compression="gzip")
    return path.read_bytes()


@pytest.fixture
def server(content):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.content, running.cut, running.ranges, running.requests = content, None, True, []
        running.elsewhere, running.said, running.paths = None, {}, []
        running.address = f"http://127.0.0.1:{running.server_port}/"
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_is_kept_and_needs_no_second(tmp_path, server, content):
    seen = []
    path = fetch(TASK, folder=tmp_path / "d", server=server.address, progress=lambda *now: seen.append(now))
    assert path.read_bytes() == content
    assert seen[-1] == (len(content), len(content))
    assert fetch(TASK, folder=tmp_path / "d", server="http://127.0.0.1:9/") == path
    assert server.requests == [None]


def test_a_broken_download_goes_on_where_it_broke(tmp_path, server, content):
    server.cut = 5000
    with pytest.raises(InputError, match="broke off; run the same command again"):
        fetch(TASK, folder=tmp_path, server=server.address)
    assert (tmp_path / f"{TASK.file}.part").stat().st_size == 5000
    assert not (tmp_path / TASK.file).exists()
    assert fetch(TASK, folder=tmp_path, server=server.address).read_bytes() == content
    assert server.requests == [None, "bytes=5000-"]


def test_a_server_without_ranges_starts_again(tmp_path, server, content):
    server.ranges = False
    (tmp_path / f"{TASK.file}.part").write_bytes(content[:700])
    assert fetch(TASK, folder=tmp_path, server=server.address).read_bytes() == content


def test_a_part_that_is_already_whole_or_too_long(tmp_path, server, content):
    part = tmp_path / f"{TASK.file}.part"
    part.write_bytes(content)
    assert fetch(TASK, folder=tmp_path, server=server.address).read_bytes() == content
    (tmp_path / TASK.file).unlink()
    part.write_bytes(content + b"more")
    assert fetch(TASK, folder=tmp_path, server=server.address).read_bytes() == content


def test_what_arrives_is_checked_and_a_bad_file_is_not_kept(tmp_path, server, content):
    broken = bytearray(content)
    broken[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    server.content = bytes(broken)
    with pytest.raises(InputError, match="not a good dataset"):
        fetch(TASK, folder=tmp_path, server=server.address)
    assert not list(tmp_path.glob("Safety*"))
    server.content = content
    other = PublishedTask("Tiny", TASK.file, 10, 9, 3, 4)
    with pytest.raises(InputError, match="has 2 action entries instead of 4 and 6 episodes instead of 9"):
        fetch(other, folder=tmp_path, server=server.address)


def test_no_network_and_no_such_file_are_said_plainly(tmp_path, server, monkeypatch):
    with pytest.raises(InputError, match=r"cannot be reached .* put the file at"):
        fetch(TASK, folder=tmp_path, server="http://127.0.0.1:9/")
    missing = PublishedTask("Gone", "SafetyGone-v0-1-1.hdf5", 10, 1)
    with pytest.raises(InputError, match="404"):
        fetch(missing, folder=tmp_path, server=server.address)
    monkeypatch.setenv("SLATER_DSRL_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("SLATER_DATA", str(tmp_path / "data"))
    with pytest.raises(InputError, match="BallRun is a published dataset"):
        locate("BallRun")


def test_downloads_never_come_over_plain_http(tmp_path, server, monkeypatch):
    assert SERVER.startswith("https://")
    with pytest.raises(InputError, match=r"http://data\.example/.* https"):
        fetch(TASK, folder=tmp_path, server="http://data.example/")
    monkeypatch.setenv("SLATER_DSRL_URL", "http://data.example/")
    with pytest.raises(InputError, match="https"):
        fetch(TASK, folder=tmp_path)
    server.elsewhere = "http://data.example/"
    with pytest.raises(InputError, match=r"http://data\.example/.* https"):
        fetch(TASK, folder=tmp_path, server=server.address)


def test_the_hash_that_a_server_states_is_checked(tmp_path, server, content):
    server.elsewhere = server.address
    server.said = {"X-Linked-ETag": '"' + "0" * 64 + '"', "X-Linked-Size": str(len(content))}
    with pytest.raises(InputError, match="SHA-256"):
        fetch(TASK, folder=tmp_path, server=server.address)
    assert not list(tmp_path.glob("Safety*"))
    server.said["X-Linked-ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
    assert fetch(TASK, folder=tmp_path, server=server.address).read_bytes() == content


def test_files_of_one_folder_come_from_one_revision(tmp_path, server):
    server.elsewhere, server.said = server.address, {"X-Repo-Commit": "c0ffee" * 6 + "c0ff"}
    fetch(TASK, folder=tmp_path, server=server.address + "resolve/main/")
    (tmp_path / TASK.file).unlink()
    fetch(TASK, folder=tmp_path, server=server.address + "resolve/main/")
    asked = [path for path in server.paths if "/store/" not in path]
    assert asked[0].startswith("/resolve/main/")
    assert asked[1].startswith("/resolve/" + server.said["X-Repo-Commit"] + "/")


def test_names_that_are_no_tasks_are_paths(tmp_path, monkeypatch):
    assert locate("minari:a/b-v0") == "minari:a/b-v0"
    assert locate("some/file.hdf5") == "some/file.hdf5"
    (tmp_path / "BallRun").write_bytes(b"mine")
    monkeypatch.chdir(tmp_path)
    assert locate("BallRun") == "BallRun"


def test_the_published_tasks():
    assert len(TASKS) == 38
    assert task_of_file("SafetyBallCircle-v0-80-886.hdf5").horizon == 200
    assert task_of_file("SafeMetaDrive-mediumdense-v0-50-1000.hdf5").name == "mediumdense"
    assert task_of_file("SafetyAntVelocityGymnasium-v1-250-2249.hdf5").metadata().horizon == 1000
    assert task_of_file("ball.hdf5") is None
