"""The one format on disk: a PyTree of arrays as safetensors, with a JSON text beside it in the same file.

One file, replaced in one rename: weights, optimisers, step and records can never disagree, and a kill at
any moment leaves the last good one. Only arrays and JSON are read back: a file cannot run code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from slater.disk import write_atomic
from slater.errors import InputError
from slater.policy.files import checksum

Tree = TypeVar("Tree")
FORMAT = "slater-checkpoint-1"


def _named(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def size_of(tree: Any) -> int:
    """Bytes of all arrays of a PyTree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def save(path: str | os.PathLike[str], tree: Any, record: dict[str, Any]) -> None:
    """Write the arrays of `tree` and the JSON `record` to `path`; atomic."""
    from safetensors.numpy import save as to_bytes

    arrays = {name: np.array(leaf, order="C") for name, leaf in _named(tree).items()}
    about = {"format": FORMAT, **record}
    signed = json.dumps({**about, "sha256": checksum(json.dumps(about), arrays)})
    write_atomic(path, to_bytes(arrays, metadata={"slater": signed}))


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record that `save` wrote; the whole file is compared with its checksum."""
    return _read(path)[1]


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays by name, and the record."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise InputError(f"there is no checkpoint {path}.")
    try:
        with safe_open(path, framework="numpy") as file:
            record: dict[str, Any] = json.loads((file.metadata() or {})["slater"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        signature = record.pop("sha256", None)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        raise InputError(f"{path} is not a checkpoint of Slater, or it is damaged ({error}).") from error
    if signature != checksum(json.dumps(record), arrays):
        raise InputError(f"{path} is damaged: it is not what was written (its checksum differs).")
    return arrays, record


def restore(path: str | os.PathLike[str], like: Tree) -> tuple[Tree, dict[str, Any]]:
    """The tree and the record that `save` wrote; `like` gives structure, shapes and types."""
    arrays, record = _read(path)
    if record.get("format") != FORMAT:
        raise InputError(f"{path} has format {record.get('format')!r}; this version reads {FORMAT!r}.")
    wanted = _named(like)
    if wanted.keys() != arrays.keys():
        odd = sorted(wanted.keys() ^ arrays.keys())[0]
        raise InputError(f"{path} belongs to other settings or another version: {odd} is on one side only.")
    for name, leaf in wanted.items():
        if arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
            raise InputError(
                f"{path} belongs to other settings: {name} has shape {arrays[name].shape}, not {leaf.shape}."
            )
    leaves = [jnp.asarray(arrays[name]) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), record
