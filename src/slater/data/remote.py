"""Logs by address: `s3://`, `gs://`, `hf://`, `https://`, `memory://`, whatever fsspec has a driver for.

A file is copied once, to `remote` in the data folder, below a name made of its address and of what the
store says of its version (size, time, ETag): one that changes there is fetched anew, but over https, where
a file counts as unchanging. Each machine of a cluster fetches a copy of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from slater.errors import InputError, optional


def data_folder() -> Path:
    """The folder of downloaded files: SLATER_DATA, or `slater` in the user's cache folder."""
    chosen = os.environ.get("SLATER_DATA")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slater"


def is_address(name: Any) -> bool:
    """Whether `name` is an address rather than a path, a frame, or `minari:ID`."""
    return isinstance(name, str) and re.match(r"[A-Za-z][\w+.-]*://", name) is not None


def whole(place: str) -> str:
    """A path from the root, for processes that stand in other folders; an address as it is."""
    return place if is_address(place) else str(Path(place).resolve())


def file_in(folder: str, name: str) -> str | None:
    """The path or address of the file `name` in a folder that is either, if it is there."""
    if not is_address(folder):
        own = Path(folder) / name
        return str(own) if own.is_file() else None
    address = f"{folder.rstrip('/')}/{name}"
    files, path = _store(address)
    return address if files.isfile(path) else None


def local_copy(address: str) -> Path:
    """The copy of the file at `address`, fetched if there is none of this version yet."""
    files, path = _store(address)
    try:
        if files.isdir(path):
            raise InputError(f"{address} is a folder; give the address of one file.")
        version = hashlib.sha256(f"{address}\n{files.ukey(path)}".encode()).hexdigest()[:16]
        target = data_folder() / "remote" / version / address.rpartition("/")[2]
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                files.get_file(path, str(Path(folder) / "part"))
                os.replace(Path(folder) / "part", target)
    except FileNotFoundError:
        raise InputError(f"There is no file {address}.") from None
    except OSError as error:
        raise _unreadable(address, error) from error
    return target


def _store(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    optional("fsspec", f"{address} is an address, which needs fsspec", "remote")
    from fsspec.core import url_to_fs

    try:
        files, path = url_to_fs(address)
    except (ImportError, ValueError) as error:  # its driver is not installed, or there is none
        raise _unreadable(address, error) from error
    return files, path


def _unreadable(address: str, error: Exception) -> InputError:
    return InputError(f"{address} cannot be read ({' '.join(str(error).split()).rstrip('.')}).")
