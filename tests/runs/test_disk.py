"""Locks and files on disk, with real processes."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slater import InputError
from slater.disk import append_json_line, locked, read_json, read_json_lines, write_atomic

HOLD = """
import sys, time
from slater.disk import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_holds_the_folder_and_a_killed_one_does_not_count(tmp_path):
    process = hold(tmp_path / "run")
    try:
        with (
            pytest.raises(InputError, match=rf"run is in use by process {process.pid} \(.*since"),
            locked(tmp_path / "run"),
        ):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked(tmp_path / "run") as died:
        assert died is not None
        assert died.pid == process.pid
    with locked(tmp_path / "run") as died:
        assert died is None


def test_the_same_process_cannot_hold_a_folder_twice(tmp_path):
    with locked(tmp_path), pytest.raises(InputError, match=f"process {os.getpid()}"), locked(tmp_path):
        pass


def test_a_lock_beside_leaves_the_place_itself_alone(tmp_path):
    with locked(tmp_path / "data.store", beside=True):
        assert not (tmp_path / "data.store").exists()
        with pytest.raises(InputError, match="in use"), locked(tmp_path / "data.store", beside=True):
            pass


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"), locked(tmp_path / "file" / "run"):
        pass


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path):
    write_atomic(tmp_path / "ours", b"x")
    (tmp_path / "plain").write_bytes(b"x")
    ours, plain = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain"))
    assert ours == plain
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "plain"]


def test_a_half_written_line_is_left_out_and_taken_back(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_json_line(path, {"step": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_json_lines(path) == [{"step": 1}]
    append_json_line(path, {"step": 2})
    assert read_json_lines(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_json_that_is_none_is_one_sentence(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match="not readable as a run"):
        read_json(tmp_path / "run.json", "a run")
    assert read_json_lines(tmp_path / "run.json") == []
