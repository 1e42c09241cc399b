"""An ONNX file as a policy, in a runtime of its own (onnxruntime)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError
from slater.policy.contract import Contract, checked, usable
from slater.policy.layers import Array, Rng


@dataclass(frozen=True)
class OnnxPolicy:
    """An ONNX file as a policy: its first input takes observations; `noise`, if it has one, is drawn.

    For a mixture that Slater wrote, `member` is drawn once per episode with the weights of the file.
    """

    path: str

    @cached_property
    def _opened(self) -> tuple[Any, dict[str, Any]]:
        """The session, and what Slater wrote about the policy, if it did."""
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise InputError(
                "an ONNX policy needs the package onnxruntime; install it with: pip install onnxruntime"
            ) from error
        try:
            session = onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors share no base class of theirs
            raise InputError(f"{self.path} is not readable as an ONNX file ({error}).") from error
        return session, json.loads(session.get_modelmeta().custom_metadata_map.get("slater", "{}"))

    @property
    def contract(self) -> Contract | None:
        """What Slater wrote about the policy, if it did."""
        record = self._opened[1].get("contract")
        return None if record is None else Contract.from_json(record)

    def begin(self, *, rng: Rng, deterministic: bool = False) -> _OnnxActor:
        """Start an episode."""
        weights = self._opened[1].get("weights")
        member = 0
        if weights is not None and len(weights) > 1:  # a lone member is not drawn: it acts as by itself
            member = int(rng.choice(len(weights), p=np.array(weights) / np.sum(weights)))
        return _OnnxActor(*self._opened, rng, deterministic, member)

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Actions for unrelated observations, by one member."""
        return self.begin(rng=rng, deterministic=deterministic).batch(observations)

    def parts(self) -> list[tuple[float, Any]]:
        """What one is drawn of in every episode, with shares: the members of a mixture, or the policy."""
        weights = self._opened[1].get("weights")
        if weights is None:
            return [(1.0, self)]
        shares = (np.array(weights) / np.sum(weights)).tolist()
        return [(share, _OnnxMember(self, k)) for k, share in enumerate(shares) if share > 0]


@dataclass(frozen=True)
class _OnnxMember:
    """One member of a mixture in an ONNX file."""

    file: OnnxPolicy
    number: int

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Actions for unrelated observations."""
        return _OnnxActor(*self.file._opened, rng, deterministic, self.number).batch(observations)


class _OnnxActor:
    """One episode, or several side by side; what the file wants to have kept is kept here."""

    def __init__(
        self, session: Any, about: dict[str, Any], rng: Rng, deterministic: bool, member: int
    ) -> None:
        self.session, self.rng, self.deterministic, self.member = session, rng, deterministic, member
        self.noise = str(about.get("noise", "normal")).lower()
        self.kept: dict[str, Array] = {k: np.array(v) for k, v in about.get("start", {}).items()}
        if "costs" in self.kept:
            self.cost_names = tuple(about["members"][0]["cost_names"])

    def batch(self, observations: Array) -> Array:
        first, *others = self.session.get_inputs()
        entries = first.shape[-1]
        seen = checked(observations, entries if isinstance(entries, int) else np.shape(observations)[-1])
        feed: dict[str, Any] = {first.name: seen}
        for given in others:
            if given.name == "member":
                feed[given.name] = np.asarray(self.member, dtype=np.int64)
            elif given.name == "time" and given.name in self.kept:
                feed[given.name] = np.asarray(self.kept["time"], dtype=np.int64)
            elif given.name in self.kept:
                value = self.kept[given.name]  # of a length that grows: 0 at first, then what it is
                grown = value.shape[1] if value.ndim == 3 else 0
                shape = [len(seen), *(n if isinstance(n, int) else grown for n in given.shape[1:])]
                kept = np.broadcast_to(value, shape) if value.size else np.zeros(shape)
                feed[given.name] = kept.astype(np.float32)
            else:
                shape = [len(observations), *(int(size) for size in given.shape[1:])]
                drawn = self.rng.gumbel(size=shape) if "gumbel" in self.noise else self.rng.normal(size=shape)
                feed[given.name] = (0.0 * drawn if self.deterministic else drawn).astype(np.float32)
        names = [output.name for output in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(None, feed), strict=True))
        self.kept |= {name[:-4]: value for name, value in found.items() if name.endswith("_out")}
        return usable(np.asarray(found[names[0]]), seen)

    def act(self, observation: Array) -> Array:
        """Action for one observation."""
        return np.asarray(self.batch(np.asarray(observation)[None])[0])

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """What the last action brought, where the file keeps a budget."""
        for name, value in (("reward", reward), ("costs", costs)):
            if name in self.kept:
                self.kept[name] = np.atleast_1d(np.asarray(value))[None]
