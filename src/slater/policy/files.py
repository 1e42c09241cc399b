"""Policies as safetensors files: arrays and JSON, nothing that can run code.

Safetensors has no checksum, and one flipped bit is another policy, so the file holds a SHA-256 of its
arrays and of what it says about them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from slater.disk import write_atomic
from slater.errors import InputError
from slater.policy.base import Described, SavedPolicy
from slater.policy.contract import Contract
from slater.policy.mixture import Mixture

FORMAT = "slater-policy-1"


def save(
    policy: SavedPolicy | Mixture, path: str | os.PathLike[str], contract: Contract | None = None
) -> None:
    """Save a policy or a mixture as one safetensors file, with its normalisers and bounds; atomic.

    contract: what the file says about the policy; by default the policy's own, if it has one.
    """
    from safetensors.numpy import save as to_bytes

    members = policy.members if isinstance(policy, Mixture) else (policy,)
    tensors = {
        f"{index}.{name}": np.ascontiguousarray(array)
        for index, member in enumerate(members)
        for name, array in member.tensors().items()
    }
    about: dict[str, Any] = {"format": FORMAT, "members": [member.description() for member in members]}
    if isinstance(policy, Mixture):
        about["weights"] = policy.weights.tolist()
    contract = contract or getattr(policy, "contract", None)
    if contract is not None:
        about["contract"] = contract.to_json()
    text = json.dumps(about)
    # one entry: with several, safetensors writes them in any order, and equal policies would be unequal files
    signed = json.dumps({**about, "sha256": checksum(text, tensors)})
    write_atomic(path, to_bytes(tensors, metadata={"slater": signed}))


def checksum(about: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 (hex) of everything in a file of arrays and a text about them."""
    content = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        content.update(f"{name} {array.dtype.str} {array.shape}".encode())
        content.update(array.tobytes())
    return content.hexdigest()


def _refuse_infinite(path: str | os.PathLike[str], tensors: Mapping[str, NDArray[Any]]) -> None:
    """A policy that is not made of numbers does not act, whatever wrote it."""
    for name, array in tensors.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise InputError(f"{path} is no policy: its array {name} is not finite everywhere.")
        if name.endswith("obs_std") and not np.all(array > 0):
            raise InputError(f"{path} is no policy: its array {name}, which divides, is not above 0.")


def load(path: str | os.PathLike[str]) -> SavedPolicy | Mixture:
    """Load what `save` wrote. Only arrays and JSON are read: a file cannot run code."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise InputError(f"there is no policy file {path}; give a .safetensors file that a run wrote.")
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["slater"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        if about.pop("sha256", None) != checksum(json.dumps(about), tensors):
            raise InputError(f"{path} is damaged: it is not what was written (its checksum differs).")
        _refuse_infinite(path, tensors)
        if about["format"] != FORMAT:
            raise InputError(f"{path} has format {about['format']!r}; this version reads {FORMAT!r}.")
        members = tuple(
            from_tensors(description, {k[len(p) :]: v for k, v in tensors.items() if k.startswith(p)})
            for p, description in ((f"{i}.", d) for i, d in enumerate(about["members"]))
        )
        weights = about.get("weights")
        contract = None if about.get("contract") is None else Contract.from_json(about["contract"])
        # every member knows it: an actor is a member's
        members = tuple(
            cast(SavedPolicy, replace(member, contract=contract)) if isinstance(member, Described) else member
            for member in members
        )
        if weights is None:
            return members[0]
        return Mixture(members, np.asarray(weights, dtype=np.float64), contract=contract)
    except InputError:
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, OSError) as error:
        raise InputError(f"{path} is not a policy file of Slater, or it is damaged ({error}).") from error


#: kind -> where its class is; a class is imported when a file names it
_KINDS = {
    "gaussian": "slater.policy.networks:GaussianPolicy",
    "gaussian mixture": "slater.policy.networks:GaussianMixturePolicy",
    "categorical": "slater.policy.networks:CategoricalPolicy",
    "sequence": "slater.policy.sequence:SequencePolicy",
    "candidates": "slater.policy.candidates:CandidatesPolicy",
    "switching": "slater.policy.switching:SwitchingPolicy",
    "remembering": "slater.policy.remembering:RememberingPolicy",
    "table-mixture": "slater.policy.tabular:TableMixture",
}


def from_tensors(description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> SavedPolicy:
    """A policy from what its `description` and `tensors` gave; ValueError or KeyError if they do not fit."""
    if description["kind"] not in _KINDS:
        raise ValueError(f"unknown kind {description['kind']!r}")
    module, _, name = _KINDS[description["kind"]].partition(":")
    policy: SavedPolicy = getattr(import_module(module), name).from_tensors(description, tensors)
    return policy


def with_limits(policy: SavedPolicy | Mixture, limits: Sequence[float]) -> SavedPolicy | Mixture:
    """The policy aiming at other limits, one per cost, in cost per episode, if it is of a kind that can."""
    if isinstance(policy, Mixture):
        members = tuple(cast(SavedPolicy, with_limits(member, limits)) for member in policy.members)
        return replace(policy, members=members)
    change = getattr(policy, "with_limits", None)
    if change is None:
        raise InputError(
            "this policy was trained for its own limits and cannot take others; train one for these "
            "(policies of caps and cdt serve all limits)."
        )
    changed: SavedPolicy = change(limits)
    return changed
