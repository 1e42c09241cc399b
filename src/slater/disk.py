"""Files that a crash cannot leave half written, JSON lines, and locks between processes."""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from slater.errors import InputError


def digest_of(path: str | os.PathLike[str]) -> str:
    """A short name for what a file holds now; "" if there is none."""
    file = Path(path)
    return blake2b(file.read_bytes(), digest_size=16).hexdigest() if file.is_file() else ""


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old content or the new one, never a part.

    The file gets the mode that any new file gets here (the umask decides), not one of its owner alone.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself must reach the disk too; Windows cannot open a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Around what writes `path`: what the system has against it becomes one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from None


def make_folder(path: str | os.PathLike[str]) -> Path:
    """A folder for what is to be written, with those above it; one sentence if it cannot be made."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {path} cannot be made: {error.strerror}.") from error
    return Path(path)


# -- JSON ---------------------------------------------------------------------------------------------------


def write_json(path: str | os.PathLike[str], record: Any) -> None:
    """Write `record` as indented JSON; atomic."""
    write_atomic(path, json.dumps(record, indent=1).encode())


def read_json(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The JSON object in `path`; `what` names it in the error: "a run", "a result"."""
    try:
        record = json.loads(Path(path).read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not readable as {what} ({error}).") from error
    if not isinstance(record, dict):
        raise InputError(f"{path} is not readable as {what}: it holds no JSON object.")
    return record


def typed(kind: Any, value: Any) -> Any:
    """A JSON value as the type of a field says it: of text, numbers, tuples, mappings, None, dataclasses.

    A KeyError names a field that is missing; what does not fit is a ValueError, TypeError or AttributeError.
    """
    if is_dataclass(value):  # read already
        return value
    parts = get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        for field in fields(kind):
            if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
                raise KeyError(field.name)
        known = [field.name for field in fields(kind) if field.name in value]
        return kind(**{name: typed(hints[name], value[name]) for name in known})  # type: ignore[operator]
    if type(None) in parts:
        return None if value is None else typed(parts[0], value)
    if get_origin(kind) is Literal and value not in parts:
        raise ValueError(f"{value!r} is none of {', '.join(parts)}")
    if get_origin(kind) is tuple:
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(typed(part, one) for part, one in zip(kinds, value, strict=True))
    if get_origin(kind) is Mapping:
        return {str(name): typed(parts[1], one) for name, one in value.items()}
    if kind is float and not math.isfinite(float(value)):
        raise ValueError(f"it holds {value}, which is no finite number")
    return value if kind is Any or get_origin(kind) is Literal else kind(value)


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All JSON objects of a file of lines; one that is being written, and strays, are left out."""
    rows: list[dict[str, Any]] = []
    if Path(path).is_file():
        for line in Path(path).read_text(errors="replace").splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                rows.append(row)
    return rows


def known_line(path: str | os.PathLike[str], fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """The first object of a file of lines that `fits`; None if there is none."""
    return next(filter(fits, read_json_lines(path)), None)


def write_json_lines(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write every row as a line of JSON; atomic."""
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def append_json_line(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Add one row; a part of a line that a crash left at the end of the file is taken back first."""
    take_back_cut_line(path)
    with Path(path).open("ab") as file:
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def take_back_cut_line(path: str | os.PathLike[str]) -> None:
    """Remove the part of a line that a kill or a full disk left at the end of a file of JSON lines."""
    if not Path(path).is_file():
        return
    with Path(path).open("r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            last = content.rfind(b"\n") + 1
            try:
                json.loads(content[last:])
                file.write(b"\n")  # whole but for its end
            except ValueError:
                file.truncate(last)


# -- locks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, or held it when it died."""

    pid: int
    host: str
    command: str
    since: str

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"process {self.pid}{where} ({self.command}, since {self.since})"


@contextmanager
def locked(
    path: str | os.PathLike[str], *, beside: bool = False, wait: float = 0.0
) -> Iterator[Holder | None]:
    """Hold the folder `path` against other processes; an `InputError` names the one that holds it.

    The folder is made if there is none. beside: the lock is a file beside `path` and not in it, for a file,
    or for a folder that a rename puts in place. wait: seconds to wait for the one that holds it. The system
    lets go of the lock of a process that ends, however it ends; gives the one that died while it held it (by
    `kill -9`, say), if there was one.
    """
    from filelock import FileLock, Timeout

    path = Path(path)
    file = path.with_name(f".{path.name}.lock") if beside else path / ".lock"
    note = file.with_name(f"{file.name}-holder")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file)
        lock.acquire(timeout=wait)
    except Timeout:
        who = _holder(note)
        known = who is not None and (who.host != socket.gethostname() or _lives(who.pid))
        raise InputError(
            f"{path} is in use by {who if known else 'another process'}; wait for it or end it, or choose "
            "another place."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error
    try:
        died = _holder(note)
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200] or "python"
        now = datetime.now().isoformat(sep=" ", timespec="seconds")
        with suppress(OSError):  # a full disk: the lock is held all the same
            write_json(note, asdict(Holder(os.getpid(), socket.gethostname(), command, now)))
        yield died
    finally:
        with suppress(OSError):
            note.unlink(missing_ok=True)
            if beside and os.name == "posix":
                # nothing is left beside a user's file; who opened this one meanwhile notices that it is gone
                file.unlink(missing_ok=True)
        lock.release()


def _holder(note: Path) -> Holder | None:
    try:
        return Holder(**read_json(note, "a note on a lock"))
    except (InputError, TypeError):
        return None


def _lives(pid: int) -> bool:
    if os.name == "posix":  # elsewhere os.kill would end it
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
    return True
