"""Pieces of an ONNX graph: what every kind of policy is written with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    output: Any


@dataclass(frozen=True)
class Built:
    """A policy in the graph: its action, what its noise is, and what its caller keeps."""

    action: Any
    noise_shape: tuple[int, ...]
    discrete: bool
    noise: str
    state: tuple[StateEntry, ...] = ()


@dataclass(frozen=True, eq=False)
class Value:
    """A value of a graph, by its name; it computes with others, numbers and arrays as arrays do."""

    graph: Graph
    name: str


for _word, _operator in {
    "add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "matmul": "MatMul", "pow": "Pow",
    "lt": "Less", "gt": "Greater", "ge": "GreaterOrEqual",
}.items():  # fmt: skip
    setattr(Value, f"__{_word}__", lambda a, b, made=_operator: a.graph.node(made, a, b))
    setattr(Value, f"__r{_word}__", lambda a, b, made=_operator: a.graph.node(made, b, a))


class Graph:
    """Nodes and constants of a graph under construction; its methods give a `Value`, and take what they give.

    Among what is taken, a text is the name of an input, and a number or an array is a constant: whole numbers
    int64, others float32.

    components: columns of the noise that draw one of several Gaussians, the most that any member has
    observation: what networks see, an input or what was made of inputs
    """

    def __init__(self, components: int = 0) -> None:
        self.components = components
        self.observation: Any = "observation"
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def value(self, x: Any, name: str | None = None) -> Any:
        """An input, or a constant, by a name of its own if one is given."""
        from onnx import numpy_helper

        if isinstance(x, Value | str):
            return x if isinstance(x, Value) else Value(self, x)
        array = np.asarray(x)
        array = np.asarray(array, np.int64 if array.dtype.kind == "i" else np.float32, order="C")
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return Value(self, name)

    def node(self, operator: str, *inputs: Any, outputs: Sequence[str] = (), **attributes: Any) -> Any:
        """One operation; its first output."""
        from onnx import helper

        taken = [self.value(x).name for x in inputs]
        names = list(outputs or [f"v{len(self.nodes)}"])
        self.nodes.append(helper.make_node(operator, taken, names, **attributes))
        return Value(self, names[0])

    def network(self, name: str, x: Any, layers: Layers) -> Any:
        """A ReLU network on x, shape (rows, in); the last layer without activation."""
        for index, (weight, bias) in enumerate(layers):
            x = self.node("Relu", x) if index else x
            weights = self.value(weight, f"{name}.{index}.weight")
            x = self.value(x) @ weights + self.value(bias, f"{name}.{index}.bias")
        return x

    def joined(self, *parts: Any, axis: int = 1) -> Any:
        """The parts side by side."""
        return self.node("Concat", *parts, axis=axis)

    def clip(self, x: Any, low: float, high: float) -> Any:
        """The value cut to [low, high]."""
        return self.node("Clip", x, float(low), float(high))

    def columns(self, x: Any, first: int, last: int) -> Any:
        """The columns first .. last-1."""
        return self.node("Slice", x, [first], [last], [1])

    def like(self, x: Any, value: Any) -> Any:
        """A column of `value`, (batch, 1), for x (batch, ...)."""
        return self.columns(x, 0, 1) * 0.0 + value

    def length(self, x: Any) -> Any:
        """The length of the second axis, (1,)."""
        return self.node("Gather", self.node("Shape", x), [1], axis=0)

    def split(self, x: Any, sizes: Sequence[int], axis: int = 1) -> list[Any]:
        """Parts of these sizes."""
        names = [f"v{len(self.nodes)}.{part}" for part in range(len(sizes))]
        self.node("Split", x, list(sizes), outputs=names, axis=axis)
        return [Value(self, name) for name in names]

    def drawn(
        self, moments: Any, size: int, log_std_range: tuple[float, float], noise: Any, axis: int = 1
    ) -> Any:
        """Mean plus noise times the exponential of the clipped log deviation; both side by side on `axis`."""
        mean, log_std = self.split(moments, (size, size), axis)
        return mean + self.node("Exp", self.clip(log_std, *log_std_range)) * noise

    def last_noise(self, size: int) -> Any:
        """The noise of the action itself, (batch, size): the columns that draw no component."""
        if not self.components:
            return "noise"
        return self.columns("noise", self.components, self.components + size)

    def normalised(self, name: str, obs_mean: NDArray[Any], obs_std: NDArray[Any]) -> Any:
        """(observation - mean) / std."""
        mean, std = self.value(obs_mean, f"{name}.obs_mean"), self.value(obs_std, f"{name}.obs_std")
        return (self.value(self.observation) - mean) / std

    def stretched(self, name: str, x: Any, low: NDArray[Any], high: NDArray[Any]) -> Any:
        """Actions from [-1, 1] to [low, high]."""
        lows, highs = self.value(low, f"{name}.low"), self.value(high, f"{name}.high")
        wide = (x + 1.0) * 0.5 * self.value(high - low, f"{name}.width")
        return self.node("Min", self.node("Max", lows + wide, lows), highs)

    def reshaped(self, x: Any, *shape: int) -> Any:
        """In another shape; 0 keeps a length, -1 is what is left."""
        return self.node("Reshape", x, list(shape))

    def best(self, scores: Any, axis: int = 1, keepdims: int = 0) -> Any:
        """The place of the largest."""
        return self.node("ArgMax", scores, axis=axis, keepdims=keepdims)

    def row(self, x: Any, which: Any, width: int) -> Any:
        """Of x, (batch, n, width), one row each, (batch, width); which: (batch, 1)."""
        index = self.node("Tile", self.at(which, 2), [1, 1, width])
        return self.node("Squeeze", self.node("GatherElements", x, index, axis=1), [1])

    def at(self, x: Any, axis: int) -> Any:
        """With one axis more."""
        return self.node("Unsqueeze", x, [axis])
