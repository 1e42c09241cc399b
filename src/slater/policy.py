"""What a policy is, for everything that runs one: rollouts, evaluation, estimators, users' own code.

A policy is asked for actions in two ways. `act` maps a batch of observations to actions and has no
memory. `begin` starts an episode: a mixture draws its member there (one member per episode, never an
average of action probabilities), and a policy with memory, such as a transformer, starts its history.

Saved policies need NumPy and safetensors only: a file holds arrays and a JSON text, so that nothing
that is loaded can run code, and a controller does not need the framework that trained it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError

__all__ = [
    "Actor",
    "CategoricalPolicy",
    "GaussianPolicy",
    "MemorylessActor",
    "Mixture",
    "Policy",
    "SavedPolicy",
    "load",
    "save",
    "with_limits",
    "write_atomic",
]

FORMAT = "slater-policy-1"
F32 = NDArray[np.float32]


class Actor(Protocol):
    """A policy at work in one episode."""

    def act(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Action, shape `(action_dim,)` or a scalar index, for one observation, shape `(obs_dim,)`."""
        ...

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """Tell the actor what its last action brought: reward, and costs of shape `(I,)`."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Anything that can be asked for actions."""

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Actions, shape `(batch, action_dim)` or `(batch,)` if discrete, for `(batch, obs_dim)`."""
        ...

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> Actor:
        """Start an episode; the actor draws all its randomness from `rng`."""
        ...


class SavedPolicy(Policy, Protocol):
    """A policy that `save` can write and `load` can read: arrays by name, and JSON for the rest.

    Its class also has `from_tensors(description, tensors)` and stands in `_KINDS` under its kind.
    """

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every array of the policy, by name."""
        ...

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON; "kind" names the class."""
        ...


@dataclass(frozen=True)
class MemorylessActor:
    """The actor of a policy without memory: ask the policy anew at each step."""

    policy: Policy
    rng: np.random.Generator
    deterministic: bool

    def act(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Action for one observation, shape `(obs_dim,)`."""
        batch = np.asarray(observation)[None]
        return np.asarray(self.policy.act(batch, rng=self.rng, deterministic=self.deterministic)[0])

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """Nothing to remember."""


@dataclass(frozen=True)
class _NetworkPolicy:
    """A ReLU network over normalised observations; its subclasses say what the outputs mean.

    `weights[l]` has shape `(in, out)`, `biases[l]` `(out,)`; observations enter as
    `(obs - obs_mean) / obs_std`, both of shape `(obs_dim,)`.
    """

    weights: tuple[F32, ...]
    biases: tuple[F32, ...]
    obs_mean: F32
    obs_std: F32

    def outputs(self, observations: NDArray[Any]) -> F32:
        """The network's last layer, shape `(batch, outputs)`, for observations `(batch, obs_dim)`."""
        x = np.asarray(observations, dtype=np.float32)
        if x.ndim != 2 or x.shape[1] != self.obs_mean.shape[0]:
            raise InputError(
                f"the policy takes observations of shape (batch, {self.obs_mean.shape[0]}), not {x.shape}."
            )
        x = (x - self.obs_mean) / self.obs_std
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ weight
            x += bias
            np.maximum(x, 0.0, out=x)
        return np.asarray(x @ self.weights[-1] + self.biases[-1], dtype=np.float32)

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        raise NotImplementedError

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> Actor:
        return MemorylessActor(self, rng, deterministic)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every array of the policy, by name."""
        named: dict[str, NDArray[Any]] = {"obs_mean": self.obs_mean, "obs_std": self.obs_std}
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"layers.{index}.weight"] = weight
            named[f"layers.{index}.bias"] = bias
        return named

    @staticmethod
    def _layers(tensors: Mapping[str, NDArray[Any]]) -> tuple[tuple[F32, ...], tuple[F32, ...], int]:
        """Weights, biases and the number of outputs; ValueError if they do not fit together."""
        layers = sum(name.endswith(".weight") for name in tensors)
        weights = tuple(tensors[f"layers.{index}.weight"] for index in range(layers))
        biases = tuple(tensors[f"layers.{index}.bias"] for index in range(layers))
        sizes = [tensors["obs_mean"].shape[0], *(weight.shape[1] for weight in weights)]
        if layers == 0 or any(
            weight.shape[0] != size or bias.shape != (weight.shape[1],)
            for weight, bias, size in zip(weights, biases, sizes, strict=False)
        ):
            raise ValueError("the layers do not fit together")
        return weights, biases, sizes[-1]


@dataclass(frozen=True)
class GaussianPolicy(_NetworkPolicy):
    """Continuous actions: tanh of a Gaussian, stretched to the box `[low, high]`.

    The network gives mean and log standard deviation before the tanh, each `(batch, action_dim)`; the
    log standard deviation is clipped to `log_std_range`. Deterministic means tanh of the mean.
    """

    low: F32
    high: F32
    log_std_range: tuple[float, float]

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[np.float32]:
        """Actions of shape `(batch, action_dim)` inside `[low, high]`."""
        mean, log_std = np.split(self.outputs(observations), 2, axis=-1)
        if not deterministic:
            noise = rng.standard_normal(mean.shape, dtype=np.float32)
            mean = np.asarray(mean + np.exp(np.clip(log_std, *self.log_std_range)) * noise, dtype=np.float32)
        squashed = np.tanh(mean)
        actions = self.low + (squashed + 1.0) * 0.5 * (self.high - self.low)
        # float32 rounding may leave the box by one unit in the last place; simulators refuse that
        return np.clip(actions, self.low, self.high).astype(np.float32)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every array of the policy, by name."""
        return super().tensors() | {"low": self.low, "high": self.high}

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return {"kind": "gaussian", "log_std_range": list(self.log_std_range)}

    @classmethod
    def from_tensors(
        cls, description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> GaussianPolicy:
        """What `tensors` and `description` gave; ValueError or KeyError if they do not fit together."""
        weights, biases, outputs = cls._layers(tensors)
        low, high = (float(x) for x in description["log_std_range"])
        if outputs != 2 * tensors["low"].shape[0] or tensors["low"].shape != tensors["high"].shape:
            raise ValueError("the bounds do not fit the last layer")
        return cls(
            weights, biases, tensors["obs_mean"], tensors["obs_std"], tensors["low"], tensors["high"],
            (low, high),
        )  # fmt: skip


@dataclass(frozen=True)
class CategoricalPolicy(_NetworkPolicy):
    """Discrete actions: the network gives one logit per action."""

    def probabilities(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Action probabilities, shape `(batch, actions)`."""
        logits = self.outputs(observations)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[np.int64]:
        """Action indices of shape `(batch,)`."""
        logits = self.outputs(observations)
        if not deterministic:
            # the Gumbel trick: argmax of logits plus Gumbel noise is a draw from the softmax
            logits = logits + rng.gumbel(size=logits.shape).astype(np.float32)
        return np.asarray(np.argmax(logits, axis=-1), dtype=np.int64)

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return {"kind": "categorical"}

    @classmethod
    def from_tensors(
        cls, description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> CategoricalPolicy:
        """What `tensors` gave; ValueError or KeyError if the arrays do not fit together."""
        weights, biases, _ = cls._layers(tensors)
        return cls(weights, biases, tensors["obs_mean"], tensors["obs_std"])


@dataclass(frozen=True)
class Mixture:
    """A policy that draws one member at the start of an episode, member k with probability `weights[k]`."""

    members: tuple[SavedPolicy, ...]
    weights: NDArray[np.float64]

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, dtype=np.float64)
        if not self.members or weights.shape != (len(self.members),):
            raise InputError(
                f"a mixture of {len(self.members)} members needs as many weights, not {weights.shape}."
            )
        if not np.all(weights >= 0) or not np.isclose(weights.sum(), 1.0, atol=1e-6):
            raise InputError(f"mixture weights must be >= 0 and sum to 1, not {weights.tolist()}.")
        object.__setattr__(self, "weights", weights / weights.sum())

    @classmethod
    def uniform(cls, members: Sequence[SavedPolicy]) -> Mixture:
        """Unif(pi_1, ..., pi_K) of the paper."""
        return cls(tuple(members), np.full(len(members), 1.0 / len(members)))

    def draw(self, rng: np.random.Generator) -> SavedPolicy:
        """One member, for one episode."""
        return self.members[int(rng.choice(len(self.members), p=self.weights))]

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> Actor:
        """Start an episode with one member, drawn now and kept to the end."""
        return self.draw(rng).begin(rng=rng, deterministic=deterministic)

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Actions for a batch of unrelated observations: each row draws its own member.

        This is right for first observations only; inside an episode use `begin`, which keeps its member.
        """
        drawn = rng.choice(len(self.members), p=self.weights, size=len(observations))
        actions = None
        for member in np.unique(drawn):
            rows = np.flatnonzero(drawn == member)
            part = self.members[member].act(observations[rows], rng=rng, deterministic=deterministic)
            if actions is None:
                actions = np.empty((len(observations), *part.shape[1:]), dtype=part.dtype)
            actions[rows] = part
        if actions is None:
            raise InputError("the batch of observations is empty.")
        return actions


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old content or the new one, never a part."""
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    # the rename itself must reach the disk too
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(policy: SavedPolicy | Mixture, path: str | os.PathLike[str]) -> None:
    """Save a policy or a mixture as one safetensors file, with its normalisers and bounds; atomic."""
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
    write_atomic(path, to_bytes(tensors, metadata={"slater": json.dumps(about)}))


def load(path: str | os.PathLike[str]) -> SavedPolicy | Mixture:
    """Load what `save` wrote. Only arrays and JSON are read: a file cannot run code."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise InputError(f"there is no policy file {path}; give a .safetensors file that a run wrote.")
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["slater"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        if about["format"] != FORMAT:
            raise InputError(f"{path} has format {about['format']!r}; this version reads {FORMAT!r}.")
        members = tuple(
            _from_tensors(description, {k[len(p) :]: v for k, v in tensors.items() if k.startswith(p)})
            for p, description in ((f"{i}.", d) for i, d in enumerate(about["members"]))
        )
        weights = about.get("weights")
        if weights is None:
            return members[0]
        return Mixture(members, np.asarray(weights, dtype=np.float64))
    except InputError:
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, OSError) as error:
        raise InputError(f"{path} is not a policy file of Slater, or it is damaged ({error}).") from error


#: kind -> where its class is; a class is imported when a file names it
_KINDS = {
    "gaussian": "slater.policy:GaussianPolicy",
    "categorical": "slater.policy:CategoricalPolicy",
    "sequence": "slater.sequence_policy:SequencePolicy",
    "candidates": "slater.candidates_policy:CandidatesPolicy",
}


def _from_tensors(description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> SavedPolicy:
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
            "(a policy of cdt serves all limits)."
        )
    changed: SavedPolicy = change(limits)
    return changed
