"""Simulators behind Gymnasium, with named costs, and rollouts of policies in them."""

from slater.envs.baseline import RandomPolicy
from slater.envs.episode import Episode, Transitions
from slater.envs.evaluation import Rollout, Summary, record, rollout
from slater.envs.making import IDS, make, register
from slater.envs.scores import DSRL_RETURNS, Scores, dsrl_scores
from slater.envs.workers import Workers

__all__ = [
    "DSRL_RETURNS",
    "IDS",
    "Episode",
    "RandomPolicy",
    "Rollout",
    "Scores",
    "Summary",
    "Transitions",
    "Workers",
    "dsrl_scores",
    "make",
    "record",
    "rollout",
]

register()
