"""The exact world: finite CMDPs, where every claim can be checked against a linear program.

import numpy as np
from slater import tabular as tab

rng = np.random.default_rng(3)
cmdp = tab.paper_cmdp(rng)                                              # the truth
data = tab.Counts.sample(cmdp, tab.half_optimal_behaviour(cmdp), 1000, rng)   # what is logged
result = tab.PDCA().run(data)                                           # what is learned from it
print(result.policy.returns(cmdp), cmdp.solve().J_R, cmdp.limits)       # what it is worth
"""

from collections.abc import Callable

from slater.tabular.bellman import advantage, bellman_error, bellman_residual
from slater.tabular.certificate import Certificate, certify, estimate_certificate
from slater.tabular.classes import Box, L2Ball, Linear, PerSampleBox, Tabular, aggregation
from slater.tabular.cmdp import CMDP, Infeasible, Solution, uniform_policy
from slater.tabular.coptidice import COptiDICE
from slater.tabular.counts import Counts, Coverage
from slater.tabular.critics import Critic
from slater.tabular.generate import (
    GENERATORS,
    coptidice_behaviour,
    coptidice_cmdp,
    half_optimal_behaviour,
    paper_cmdp,
    sparse_cmdp,
)
from slater.tabular.mbcl import MBCL
from slater.tabular.mixture import Mixture
from slater.tabular.ope import evaluate, identification_interval, standard_error
from slater.tabular.pdca import PDCA
from slater.tabular.pdocrl import PDOCRL
from slater.tabular.pessimism import affordable, pair_errors, pessimistic, rare_share
from slater.tabular.plugin import PlugIn
from slater.tabular.result import Algorithm, Result
from slater.tabular.theory import MODES, TheoremPlan, make_plan
from slater.tabular.unconstrained import MABO, PRORL, ACrab
from slater.tabular.wsac import WSAC

__all__ = [
    "ALGORITHMS",
    "CMDP",
    "GENERATORS",
    "MABO",
    "MBCL",
    "MODES",
    "PDCA",
    "PDOCRL",
    "PRORL",
    "WSAC",
    "ACrab",
    "Algorithm",
    "Box",
    "COptiDICE",
    "Certificate",
    "Counts",
    "Coverage",
    "Critic",
    "Infeasible",
    "L2Ball",
    "Linear",
    "Mixture",
    "PerSampleBox",
    "PlugIn",
    "Result",
    "Solution",
    "Tabular",
    "TheoremPlan",
    "advantage",
    "affordable",
    "aggregation",
    "bellman_error",
    "bellman_residual",
    "certify",
    "coptidice_behaviour",
    "coptidice_cmdp",
    "estimate_certificate",
    "evaluate",
    "half_optimal_behaviour",
    "identification_interval",
    "make_plan",
    "pair_errors",
    "paper_cmdp",
    "pessimistic",
    "rare_share",
    "sparse_cmdp",
    "standard_error",
    "uniform_policy",
]

#: name on the command line -> settings with the defaults of that algorithm
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "pdca": PDCA,
    "mbcl": MBCL,
    "coptidice": COptiDICE,
    "pdocrl": PDOCRL,
    "wsac": WSAC,
    "plugin": PlugIn,
    "acrab": ACrab,
    "mabo": MABO,
    "prorl": PRORL,
}
