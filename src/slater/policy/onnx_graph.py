"""Pieces of an ONNX graph: what every kind of policy is written with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.policy.layers import Layers


@dataclass(frozen=True)
class StateEntry:
    """An input that the caller keeps from call to call.

    shape: beyond the batch, a text for a length that grows; None: a scalar that all rows share
    output: the value that is to be given back at the next call; None: the caller fills it in (costs, reward)
    start: what it is at the first step, as JSON
    """

    name: str
    shape: tuple[int | str, ...] | None
    start: Any
    output: str | None


@dataclass(frozen=True)
class Built:
    """A policy in the graph: the name of its action, what its noise is, and what its caller keeps."""

    action: str
    noise_shape: tuple[int, ...]
    discrete: bool
    noise: str
    state: tuple[StateEntry, ...] = field(default=())


class Graph:
    """Nodes and constants of a graph under construction; every method gives the name of a value.

    components: columns of the noise that draw one of several Gaussians, the most that any member has
    observation: what networks see, an input or what was made of inputs
    """

    def __init__(self, components: int = 0) -> None:
        self.components = components
        self.observation = "observation"
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def array(self, name: str, value: NDArray[Any]) -> str:
        """A constant."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def constant(self, value: Any, kind: type = np.float32) -> str:
        """A constant without a name of its own."""
        return self.array(f"c{len(self.constants)}", np.array(value, dtype=kind))

    def number(self, value: float) -> str:
        """A float constant."""
        return self.constant(value)

    def ints(self, values: Sequence[int] | int) -> str:
        """A vector of whole numbers, or one."""
        return self.constant(values, np.int64)

    def node(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str] | None = None, **attributes: Any
    ) -> str:
        """One operation; the name of its first output."""
        from onnx import helper

        names = list(outputs or [f"v{len(self.nodes)}"])
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0]

    def network(self, name: str, x: str, layers: Layers) -> str:
        """A ReLU network on x, shape (rows, in); the last layer without activation."""
        for index, (weight, bias) in enumerate(layers):
            x = self.affine(x, self.array(f"{name}.{index}.weight", weight),
                            self.array(f"{name}.{index}.bias", bias))  # fmt: skip
            if index < len(layers) - 1:
                x = self.node("Relu", [x])
        return x

    def affine(self, x: str, weight: str, bias: str) -> str:
        """The value x weight + bias."""
        return self.node("Add", [self.node("MatMul", [x, weight]), bias])

    def clip(self, x: str, low: float, high: float) -> str:
        """The value cut to [low, high]."""
        return self.node("Clip", [x, self.number(low), self.number(high)])

    def columns(self, x: str, first: int, last: int) -> str:
        """The columns first .. last-1."""
        return self.node("Slice", [x, self.ints([first]), self.ints([last]), self.ints([1])])

    def length(self, x: str) -> str:
        """The length of the second axis, (1,)."""
        return self.node("Gather", [self.node("Shape", [x]), self.ints([1])], axis=0)

    def split(self, x: str, sizes: Sequence[int], axis: int = 1) -> list[str]:
        """Parts of these sizes."""
        names = [f"v{len(self.nodes)}.{part}" for part in range(len(sizes))]
        self.node("Split", [x, self.ints(sizes)], outputs=names, axis=axis)
        return names

    def drawn(
        self, moments: str, size: int, log_std_range: tuple[float, float], noise: str, axis: int
    ) -> str:
        """Mean plus noise times the exponential of the clipped log deviation; both side by side on `axis`."""
        mean, log_std = self.split(moments, (size, size), axis)
        std = self.node("Exp", [self.clip(log_std, *log_std_range)])
        return self.node("Add", [mean, self.node("Mul", [std, noise])])

    def last_noise(self, size: int) -> str:
        """The noise of the action itself, (batch, size): the columns that draw no component."""
        if not self.components:
            return "noise"
        return self.columns("noise", self.components, self.components + size)

    def normalised(self, name: str, obs_mean: NDArray[Any], obs_std: NDArray[Any]) -> str:
        """(observation - mean) / std."""
        centred = self.node("Sub", [self.observation, self.array(f"{name}.obs_mean", obs_mean)])
        return self.node("Div", [centred, self.array(f"{name}.obs_std", obs_std)])

    def stretched(self, name: str, x: str, low: NDArray[Any], high: NDArray[Any]) -> str:
        """Actions from [-1, 1] to [low, high]."""
        half = self.node("Mul", [self.node("Add", [x, self.number(1.0)]), self.number(0.5)])
        lows, highs = self.array(f"{name}.low", low), self.array(f"{name}.high", high)
        wide = self.node("Mul", [half, self.array(f"{name}.width", high - low)])
        return self.node("Min", [self.node("Max", [self.node("Add", [lows, wide]), lows]), highs])

    def reshaped(self, x: str, *shape: int) -> str:
        """In another shape; 0 keeps a length, -1 is what is left."""
        return self.node("Reshape", [x, self.ints(list(shape))])

    def row(self, x: str, which: str, width: int) -> str:
        """Of x, (batch, n, width), one row each, (batch, width); which: (batch, 1)."""
        index = self.node("Tile", [self.at(which, 2), self.ints([1, 1, width])])
        return self.node("Squeeze", [self.node("GatherElements", [x, index], axis=1), self.ints([1])])

    def at(self, x: str, axis: int) -> str:
        """With one axis more."""
        return self.node("Unsqueeze", [x, self.ints([axis])])
