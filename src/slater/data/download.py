"""Published DSRL files by task name: downloaded once, resumed after a break, checked.

The file goes to the folder `SLATER_DATA` (default: the `slater` folder of the user's cache). While it
comes in, it is NAME.part; a broken download continues from there. It gets its name only after its size and
(where the server states one) its SHA-256 are what the server said, and its content reads as the published
task: every chunk whole, the right widths, the right number of episodes. A second use needs no network. The
revision that the first file of a folder came from is kept there in REVISION, and the others come from it too.
Nothing comes over plain HTTP.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slater.data.files import open_file
from slater.data.remote import data_folder
from slater.data.summary import summarise
from slater.data.tasks import TASKS, PublishedTask
from slater.errors import InputError

#: Where the files are published; SLATER_DSRL_URL names a mirror to use instead.
SERVER = "https://huggingface.co/datasets/YYY-45/DSRL/resolve/main/"
_PIECE = 2**18
_TIMEOUT = 30.0


def locate(name: str | Path, progress: Callable[[int, int | None], None] | None = None) -> str | Path:
    """A path for what a user typed: the file if it exists, else the download of the task of that name."""
    text = str(name)
    return fetch(TASKS[text], progress=progress) if text in TASKS and not Path(name).exists() else name


def fetch(
    task: PublishedTask,
    *,
    folder: Path | None = None,
    server: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Path:
    """The file of a task: what is there already, or a download that is resumed and checked.

    server: by default SLATER_DSRL_URL, or `SERVER` if that is not set.
    progress: called with bytes done and bytes in all (None if the server does not say).
    """
    folder = data_folder() if folder is None else folder
    target = folder / task.file
    if target.is_file():
        return target
    server = server or os.environ.get("SLATER_DSRL_URL") or SERVER
    part, pinned = folder / f"{task.file}.part", folder / "REVISION"
    revision = pinned.read_text().strip() if pinned.is_file() else "main"
    address = server.replace("/resolve/main", f"/resolve/{revision}").rstrip("/") + "/" + task.file
    redirects = _Redirects()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(address, part, redirects, progress)
    except http.client.IncompleteRead:
        raise InputError(
            f"The download of {task.file} broke off; run the same command again and it goes on."
        ) from None
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        why = f"cannot be reached ({getattr(error, 'reason', None) or error})"
        if isinstance(error, urllib.error.HTTPError):
            why = f"is not there ({error.code} {error.reason})"
        raise InputError(
            f"{task.name} is a published dataset to download, but {address} {why}: connect to a network and "
            f"run this again, or put the file at {target}."
        ) from None
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}.") from None
    _verify(part, task, redirects)
    os.replace(part, target)
    if redirects.revision and not pinned.is_file():
        pinned.write_text(redirects.revision + "\n")
    return target


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to where it keeps a file, never to plain HTTP, and hears what it says of the file."""

    size: int | None = None
    sha256: str | None = None
    revision: str | None = None

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Note size, SHA-256 and revision, where they are stated, and go on."""
        _refuse_plain(newurl)
        size, tag = headers.get("X-Linked-Size", ""), headers.get("X-Linked-ETag", "").strip('"')
        self.size = int(size) if size.isdigit() else self.size
        self.sha256 = tag if re.fullmatch("[0-9a-f]{64}", tag) else self.sha256
        commit = headers.get("X-Repo-Commit", "")
        self.revision = commit if re.fullmatch("[0-9a-f]{40}", commit) else self.revision
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refuse_plain(address: str) -> None:
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise InputError(f"{address} is refused: downloads come over https alone.")


def _download(
    address: str, part: Path, redirects: _Redirects, progress: Callable[[int, int | None], None] | None
) -> None:
    _refuse_plain(address)
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.build_opener(redirects).open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # nothing beyond what is there: it is whole, or not of this file
            stated = (error.headers.get("Content-Range") or "").rpartition("/")[2]
            if stated != str(done):
                part.unlink()
                _download(address, part, redirects, progress)
            return
        raise
    with answer:
        given = answer.headers.get("Content-Range", "")
        resumed = answer.status == 206 and given.startswith(f"bytes {done}-")
        done = done if resumed else 0
        length = answer.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        with open(part, "ab" if resumed else "wb") as file:
            while piece := answer.read(_PIECE):
                file.write(piece)
                done += len(piece)
                if progress is not None:
                    progress(done, total)
    if total is not None and done != total:
        raise http.client.IncompleteRead(b"", total - done)


def _verify(part: Path, task: PublishedTask, redirects: _Redirects) -> None:
    """Compare with what the server said, and read it as the published task; what does not fit is removed."""
    try:
        if redirects.size not in (None, part.stat().st_size):
            raise InputError(f"it has {part.stat().st_size} bytes instead of {redirects.size}")
        with open(part, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest() if redirects.sha256 else None
        if found != redirects.sha256:
            raise InputError(f"its SHA-256 is {found} instead of {redirects.sha256}")
        opened = open_file(part)
        with opened.reader:
            summary = summarise(opened)
    except InputError as error:
        part.unlink()
        message = f"The download of {task.file} is not a good dataset ({error}); run this again."
        raise InputError(message) from None
    wrong = [
        f"{summary.record[width]} {what} instead of {getattr(task, width)}"
        for width, what in (("observation_dim", "observation entries"), ("action_dim", "action entries"))
        if getattr(task, width) not in (None, summary.record[width])
    ]
    # the name of a published file counts trajectories; one that was cut off at the end may or may not count
    if abs(len(summary.episodes) - task.trajectories) > max(1, task.trajectories // 100):
        wrong.append(f"{len(summary.episodes)} episodes instead of {task.trajectories}")
    if wrong:
        part.unlink()
        raise InputError(f"The download of {task.file} has {' and '.join(wrong)}; run this again.")
