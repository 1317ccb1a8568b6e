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
# The lines above are sbatch's, for a job that outlives its nodes: no node's loss ends it, nodes are drained two minutes
# before the time limit, and a requeued job goes on in the same output file. What sbatch is told wins over them.
set -euo pipefail

# sbatch runs a copy of this script, so nothing beside it can be found: ftr must be in PATH.
ftr=${FTR:-ftr}
if ! type -P "$ftr" >/dev/null; then
  printf "launcher.sh: '%s' is not in PATH: activate the environment that has ft-rendezvous, or set FTR\n" "$ftr" >&2
  exit 2
fi
exec "$ftr" launch "$@"
