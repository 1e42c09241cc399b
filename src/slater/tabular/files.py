"""A user's own problem as one NumPy `.npz` file.

Two kinds, told apart by their fields:

- a model: `transition (S, A, S)`, `reward (S, A)`, `costs (I, S, A)`, `limits (I,)`, `discount`, and
  optionally `start` (index or `(S,)`) and `behaviour (S, A)`, the policy that would log the data;
- a log: `states (n,)`, `actions (n,)`, `next_states (n,)`, `rewards (n,)`, `costs (n, I)`, `limits (I,)`,
  `discount`, and optionally `start`, `terminals (n,)`, `num_states`, `num_actions`.

Limits are in J-units (discounted sums). Nothing in a file is executed: pickled objects are refused.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from slater.errors import InputError
from slater.tabular._check import Float, check_policy
from slater.tabular.cmdp import CMDP
from slater.tabular.counts import Counts

MODEL_FIELDS = ("transition", "reward", "costs", "limits", "discount")
LOG_FIELDS = ("states", "actions", "next_states", "rewards", "costs", "limits", "discount")


def load_problem(path: str | Path) -> tuple[CMDP, Float | None] | Counts:
    """A model with its behaviour policy `(S, A)` (None if the file has none), or a log."""
    fields = _read(Path(path))
    kind = MODEL_FIELDS if "transition" in fields else LOG_FIELDS
    missing = [name for name in kind if name not in fields]
    if missing:
        what = "model" if kind is MODEL_FIELDS else "log"
        raise InputError(f"{path} is missing {', '.join(missing)}: a {what} needs {', '.join(kind)}.")
    try:
        if kind is LOG_FIELDS:
            given: dict[str, Any] = {name: fields[name] for name in LOG_FIELDS if name != "discount"}
            given |= {name: int(fields[name]) for name in ("num_states", "num_actions") if name in fields}
            given |= {name: fields[name] for name in ("start", "terminals") if name in fields}
            return Counts.from_arrays(**given, discount=float(fields["discount"]))
        model: dict[str, Any] = {name: fields[name] for name in MODEL_FIELDS if name != "discount"}
        cmdp = CMDP(**model, discount=float(fields["discount"]), start=fields.get("start", 0))
        if "behaviour" not in fields:
            return cmdp, None
        return cmdp, check_policy("behaviour", fields["behaviour"], cmdp.num_states, cmdp.num_actions)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except TypeError as error:
        raise InputError(f"{path}: a field that should be one number is not ({error}).") from None


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        raise InputError(f"there is no file {path}.")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.ndarray):
            with archive:
                return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        # NumPy's own text for a foreign file proposes to load it unsafely; that is no advice to pass on
        kind = type(error).__name__
        raise InputError(
            f"{path} cannot be read as a NumPy .npz file: it is another format, damaged, or holds pickled "
            f"objects ({kind}); write it with numpy.savez."
        ) from None
    raise InputError(f"{path} holds a single array; a .npz file with named fields is needed.")
