"""A file for HDF5 to write to that survives a full disk.

When a write fails inside libhdf5, its objects can no longer be closed: it complains at each of them and
may crash at exit. So it is given a file whose writes never fail: the first error is kept, what follows is
dropped, and the caller asks for the error when libhdf5 is done.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

__all__ = ["CarefulFile"]


class CarefulFile(io.RawIOBase):
    """A new file, readable and writable; `error` is the first thing that went wrong with it, or None."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 (closed by close)
        self.error: OSError | None = None

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Write all of `data`, or keep the error and pretend."""
        size = memoryview(data).nbytes
        if self.error is None:
            try:
                left = memoryview(data).cast("B")
                while left:
                    left = left[self._file.write(left) :]
            except OSError as error:
                self.error = error
        return size

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; what was dropped reads as zeros."""
        view = memoryview(buffer).cast("B")
        count = self._file.readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._file.tell()

    def truncate(self, size: int | None = None) -> int:
        """Set the size, or keep the error and pretend."""
        try:
            return self._file.truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()
