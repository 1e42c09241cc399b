"""ReLU networks in NumPy, and their arrays by name; the types of arrays that policies speak of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Array = NDArray[Any]
Arrays = Mapping[str, Array]
Rng = np.random.Generator
#: (weight `(in, out)`, bias `(out,)`) per layer of a ReLU network
Layers = tuple[tuple[F32, F32], ...]


def apply_layers(layers: Layers, x: F32) -> F32:
    """The last layer's outputs, (rows, out), without activation, for inputs (rows, in)."""
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight + bias, 0.0)
    weight, bias = layers[-1]
    return np.asarray(x @ weight + bias, dtype=np.float32)


def stretched(x: F32, low: F32, high: F32) -> F32:
    """Actions from [-1, 1] to [low, high], (..., action_dim).

    Rounding may leave the box by one unit in the last place, and simulators refuse that.
    """
    return np.clip(low + (x + 1.0) * 0.5 * (high - low), low, high).astype(np.float32)


def name_layers(networks: Mapping[str, Layers]) -> dict[str, Array]:
    """Every array of networks, as NAME.LAYER.weight and NAME.LAYER.bias."""
    named: dict[str, Array] = {}
    for name, layers in networks.items():
        for index, (weight, bias) in enumerate(layers):
            named[f"{name}.{index}.weight"], named[f"{name}.{index}.bias"] = weight, bias
    return named


def read_layers(tensors: Arrays, name: str) -> Layers:
    """The network that `name_layers` named so; ValueError or KeyError if there is none."""
    count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in tensors)
    if count == 0:
        raise ValueError(f"there is no network {name}")
    return tuple(
        (tensors[f"{name}.{index}.weight"], tensors[f"{name}.{index}.bias"]) for index in range(count)
    )
