#!/usr/bin/env bash
#SBATCH --no-kill
#SBATCH --ntasks-per-node=1
#SBATCH --signal=USR1@120
#SBATCH --open-mode=append
#
# Starts one torchrun per node with --rdzv-backend=ft: on this machine, or on the nodes of a SLURM allocation.
#
#   ./launcher.sh --local 3+1 -- train.py --steps 200
#   sbatch -N 10 launcher.sh --active 8 --nproc-per-node 8 -- train.py
#   ./launcher.sh --help
#
# The #SBATCH lines are for a job that outlives its nodes: the loss of a node does not end it, nodes are drained two
# minutes before the time limit, and a requeued job appends to the same output file. Options of sbatch override them.
set -euo pipefail

# sbatch runs a copy of this script in another directory, so ftr must be in PATH.
ftr=${FTR:-ftr}
if ! type -P "$ftr" >/dev/null; then
  printf "launcher.sh: '%s' is not in PATH: activate the environment that has ft-rendezvous, or set FTR\n" "$ftr" >&2
  exit 2
fi
exec "$ftr" launch "$@"
