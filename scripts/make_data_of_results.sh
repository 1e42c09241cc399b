#!/usr/bin/env bash
# Makes the datasets of docs/results.md (up to 2026-11-16) anew, into the folder named by the first argument (default:
# data_of_results), by training their policies. `make data` makes the datasets of today, in minutes, from behaviours/.
# Compares their fingerprints with scripts/data_of_results.fingerprints, the ones that the results were made with.
# Tasks may be named after the folder; without names all are made, which takes two to three hours on one core.
# A stopped run goes on where it was. OMP_NUM_THREADS=1 is part of the recipe.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-data_of_results}
shift || true
export OMP_NUM_THREADS=1
mkdir -p "$folder"

make_one() { # name, environment, then options of slater collect
    local name=$1 environment=$2
    shift 2
    if [ ! -f "$folder/$name.hdf5" ]; then
        slater collect "$environment" --seed 1 --out "$folder/$name.hdf5" "$@"
    fi
}

small=(--hidden 128 128 --batch-size 128)
bullet=("${small[@]}" --episodes 60 --keep-training --thin 800)

task() {
    case $1 in
    ballrun) make_one ballrun bullet/BallRun --penalty 0 5 8 12 20 --steps 15000 "${bullet[@]}" ;;
    ballcircle) make_one ballcircle bullet/BallCircle --penalty 0 1 2 3 6 10 --steps 25000 "${bullet[@]}" ;;
    carrun) make_one carrun bullet/CarRun --penalty 0 1 3 10 --steps 20000 "${bullet[@]}" ;;
    carcircle) make_one carcircle bullet/CarCircle --penalty 0 0.5 1 2 --steps 50000 "${bullet[@]}" ;;
    cartpole) make_one cartpole 'rwrl/cartpole?costs=slider_pos' --penalty 0 0.3 0.8 1 --steps 100000 \
        "${small[@]}" --updates-per-step 0.5 --episodes 100 ;;
    antrun) make_one antrun bullet/AntRun --penalty 0 1 3 --steps 60000 "${bullet[@]}" ;;
    walker) make_one walker 'rwrl/walker?costs=joint_velocity' --penalty 0 0.2 0.6 --steps 250000 \
        "${small[@]}" --episodes 100 --noise 0.15 ;;
    *) echo "there is no dataset '$1'; choose among: $all" >&2 && exit 2 ;;
    esac
}

all="ballrun ballcircle carrun carcircle cartpole antrun walker"
for name in ${*:-$all}; do
    task "$name"
done
for name in ${*:-$all}; do
    made=$(slater data info "$folder/$name.hdf5" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["fingerprint"])')
    kept=$(awk -v name="$name" '$1 == name { print $2 }' "$here/data_of_results.fingerprints")
    if [ "$made" = "$kept" ]; then
        echo "$name: the same data as in docs/results.md"
    else
        echo "$name: fingerprint $made, not ${kept:-known}: another processor or other versions; results will differ"
    fi
done
