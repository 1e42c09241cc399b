"""What can act: networks, mixtures, candidates and sequences, and their files; NumPy alone."""

from slater.policy.base import Actor, MemorylessActor, Policy, SavedPolicy
from slater.policy.contract import Contract
from slater.policy.files import load, save, with_limits
from slater.policy.mixture import Mixture, parts_of
from slater.policy.networks import CategoricalPolicy, GaussianMixturePolicy, GaussianPolicy

__all__ = [
    "Actor",
    "CategoricalPolicy",
    "Contract",
    "GaussianMixturePolicy",
    "GaussianPolicy",
    "MemorylessActor",
    "Mixture",
    "Policy",
    "SavedPolicy",
    "load",
    "parts_of",
    "save",
    "with_limits",
]
