#!/bin/bash
# One process on each of two hosts, by Open MPI, MPICH or Intel MPI: `./mpirun.sh`.
#
# The hosts must reach each other by ssh without a password, and have Python, tfdp and this folder
# at the same paths. mpirun tells each process its rank and how many there are. It does not tell
# where rank 0 is: TFDP_COORDINATOR does (or mpi4py, if it is installed on every host).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

HOSTS=(node-1 node-2)        # CHANGE: rank 0 runs on the first
PORT=23456                   # CHANGE: a free port there, which the others can reach
CORES=16                     # CHANGE: the cores of a host
PYTHON="$HOME/venv/bin/python"   # CHANGE: where tfdp is installed, on every host
CHECKPOINTS=checkpoints      # CHANGE: a folder of this run on the first host; what it goes on from
RESTARTS=5                   # after failures
# TensorFlow's servers do what whoever reaches them asks (SECURITY.md).
PEERS=""                     # CHANGE: "10.0.0.1 10.0.0.2", what `hostname -I` prints on the hosts;
                             # nobody else reaches them then

export TFDP_COORDINATOR="${HOSTS[0]}:$PORT" TFDP_PEERS="$PEERS"
# What the processes know each other by: mpirun is given the variable's name alone.
TFDP_SECRET="$(head -c 32 /dev/urandom | base64)"
export TFDP_SECRET
# Each process uses the cores of its host.
export OMP_NUM_THREADS="$CORES" TF_NUM_INTRAOP_THREADS="$CORES"
# Fewer, TensorFlow's default on few cores, can starve the iterators of several devices.
export TF_NUM_INTEROP_THREADS=8
# TensorFlow leaves oneDNN off on x86 before AVX512-VNNI, where dense layers then take twice as long.
export TF_ENABLE_ONEDNN_OPTS=1
NAMES=(TFDP_COORDINATOR TFDP_PEERS TFDP_SECRET OMP_NUM_THREADS TF_NUM_INTRAOP_THREADS
    TF_NUM_INTEROP_THREADS TF_ENABLE_ONEDNN_OPTS)

COMMAND=("$PYTHON" -u train.py --epochs 3 --checkpoints "$CHECKPOINTS")
if mpirun --version | grep -q "Open MPI"; then
    # One slot a host; without --bind-to none each process would be bound to one core.
    EXPORTS=()
    for name in "${NAMES[@]}"; do EXPORTS+=(-x "$name"); done
    slots="$(printf '%s:1,' "${HOSTS[@]}")"
    RUN=(mpirun -np "${#HOSTS[@]}" --host "${slots%,}" --bind-to none --tag-output
        "${EXPORTS[@]}" "${COMMAND[@]}")
else
    list="$(printf '%s,' "${HOSTS[@]}")"
    names="$(printf '%s,' "${NAMES[@]}")"
    RUN=(mpirun -n "${#HOSTS[@]}" -ppn 1 -hosts "${list%,}" -prepend-rank
        -genvlist "${names%,}" "${COMMAND[@]}")
fi

# mpirun ends all processes when one fails. They start again, and go on from the last checkpoint;
# not after 75, a stop that SIGUSR1 to one of them has asked for, nor after Ctrl-C.
stopped=0
trap 'stopped=1' INT TERM
for ((attempt = 0; attempt <= RESTARTS; attempt++)); do
    code=0
    "${RUN[@]}" || code=$?
    if ((code == 0 || code == 75 || stopped)); then break; fi
    echo "mpirun.sh: attempt $((attempt + 1)) ended with exit code $code" >&2
    sleep "${PAUSE:-5}"
done
exit "$code"
