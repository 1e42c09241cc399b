"""Tests of `slater.tabular`: properties of the mathematics, checked with real solvers on small problems."""
