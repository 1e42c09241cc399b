#!/usr/bin/env bash
# Makes the dataset that ships with the package anew, into the file named by the first argument. It takes
# some minutes on two cores; OMP_NUM_THREADS=1 is part of the recipe. The same versions on the same kind of
# processor give the fingerprint in tests/collect/test_sample.py.
set -euo pipefail
OMP_NUM_THREADS=1 slater collect bullet/BallCircle --penalty 0 1 3 6 --steps 20000 --hidden 128 128 \
    --batch-size 128 --episodes 60 --keep-training --thin 300 --seed 0 \
    --out "${1:?the file to write, ending in .hdf5}"
