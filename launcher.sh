#!/usr/bin/env bash
# Starts one torchrun per node with --rdzv-backend=ft: on this machine, or on the nodes of a SLURM allocation.
set -uo pipefail

usage() {
  cat <<'USAGE'
Usage:
  launcher.sh --local ACTIVE+SPARES [options] -- train.py [arguments]    all nodes on this machine
  launcher.sh [--active N] [options] -- train.py [arguments]             inside a SLURM allocation

ACTIVE nodes train, SPARES wait as hot spares. When a node dies, a spare takes its rank.

Options:
  --local ACTIVE+SPARES   how many torchruns to start here, for example 3+1; 3 is the same as 3+0
  --active N              SLURM: how many of the allocation's nodes train (default: all); the rest are spares
  --nproc-per-node N      workers per node, as torchrun takes it (default: 1)
  --rdzv-conf K=V,...     settings; 'ftr settings' lists them
  --port PORT             the store's port (default: a free one with --local, else 29400)
  --log-dir DIR           one log per node goes here (default: ft-logs/RUN_ID)
  --dry-run               print exactly what would be run, and run nothing
  -h, --help              this text

What follows -- is torchrun's: a script and its arguments, or -m module and its arguments.
TORCHRUN names another torchrun than the one in PATH.

Signals:    SIGTERM and SIGINT are passed on to every node.
Exit code:  with --local: 0 if every node exited 0, 1 if any did not, 2 for wrong options, 128+N after signal N.
            Under SLURM: that of srun, the highest of all nodes.

SLURM: submit with 'sbatch --no-kill --nodes=10 ...', so that the loss of a node does not end the job. The first host
of the allocation hosts the store; its loss ends the run. A requeued job is a new run.

Examples:
  ./launcher.sh --local 3+1 -- examples/train.py --steps 200
  ./launcher.sh --active 8 --nproc-per-node 8 -- train.py --config big.yaml
USAGE
}

die() {
  printf 'launcher.sh: %s\n' "$1" >&2
  exit 2
}

is_count() { [[ $1 =~ ^[0-9]+$ ]]; }

# --- what is asked for -------------------------------------------------------------------------------

local_nodes='' active='' nproc=1 conf='' port='' log_dir='' dry_run=no
while (($#)); do
  case $1 in
    --local | --active | --nproc-per-node | --rdzv-conf | --port | --log-dir)
      (($# > 1)) || die "$1 needs a value: see --help"
      case $1 in
        --local) local_nodes=$2 ;;
        --active) active=$2 ;;
        --nproc-per-node) nproc=$2 ;;
        --rdzv-conf) conf=$2 ;;
        --port) port=$2 ;;
        --log-dir) log_dir=$2 ;;
      esac
      shift 2
      ;;
    --dry-run) dry_run=yes && shift ;;
    -h | --help) usage && exit 0 ;;
    --) shift && break ;;
    *) die "unknown option '$1': options come first, then --, then the script; see --help" ;;
  esac
done
(($#)) || die "no training script: end the command with -- train.py [arguments]"
[[ -z $port ]] || { is_count "$port" && ((port > 0 && port < 65536)); } || die "--port $port is not a port"
script=("$@")
torchrun=${TORCHRUN:-torchrun}

# --- the one command every node runs -----------------------------------------------------------------

# Sets `command` for MIN ($1), MAX ($2), endpoint ($3) and run id ($4).
build_command() {
  command=(
    "$torchrun" --nnodes="$1:$2" --nproc-per-node="$nproc" --max-restarts=1000
    --rdzv-backend=ft --rdzv-endpoint="$3" --rdzv-id="$4"
  )
  [[ -z $conf ]] || command+=(--rdzv-conf="$conf")
  command+=("${script[@]}")
}

show() {
  printf '%q ' "$@"
}

# --- on this machine ---------------------------------------------------------------------------------

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
}

pids=() signal='' reached=0 is_interrupted=no

# shellcheck disable=SC2317 # Called by the traps.
forward() {
  signal=$1 reached=${#pids[@]} is_interrupted=yes
  printf 'launcher.sh: passing SIG%s on to all nodes\n' "$signal" >&2
  ((${#pids[@]} == 0)) || kill -s "$signal" "${pids[@]}" 2>/dev/null
}

# Waits for process $1 and sets `status`; a passed-on signal ends bash's own wait early.
wait_for() {
  while :; do
    is_interrupted=no
    wait "$1"
    status=$?
    [[ $is_interrupted == yes ]] || return
  done
}

run_local() {
  [[ $local_nodes =~ ^([0-9]+)(\+([0-9]+))?$ ]] || die "--local $local_nodes is not ACTIVE+SPARES, for example 3+1"
  local least=$((10#${BASH_REMATCH[1]})) spares=$((10#${BASH_REMATCH[3]:-0}))
  local most=$((least + spares)) run_id status failed=0
  ((least > 0)) || die "--local $local_nodes has no active node"
  [[ -z $active ]] || die "--active is for SLURM: --local $local_nodes already says how many train"
  run_id=local-$(date +%Y%m%d-%H%M%S)-$$
  log_dir=${log_dir:-ft-logs/$run_id}
  port=${port:-$(free_port)}
  [[ -n $port ]] || die "no free port was found: is python3 in PATH? Or pass --port"
  build_command "$least" "$most" "localhost:$port" "$run_id"

  # Inside an allocation of several machines these would say that localhost cannot be the endpoint.
  local outer=(-u SLURM_NNODES -u SLURM_JOB_NUM_NODES)
  if [[ $dry_run == yes ]]; then
    show mkdir -p "$log_dir" && printf '\n'
    for ((node = 0; node < most; node++)); do
      show env "${outer[@]}" FT_INFRA_RANK="$node" "${command[@]}"
      printf '>%q 2>&1 </dev/null &\n' "$log_dir/node-$node.log"
    done
    return 0
  fi

  type -P "$torchrun" >/dev/null || die "'$torchrun' is not in PATH: activate the environment, or set TORCHRUN"
  mkdir -p "$log_dir" || die "the log directory $log_dir cannot be made: pass another --log-dir"
  # Job control gives every node a process group of its own: Ctrl-C reaches it once, through `forward`.
  set -m
  trap 'forward TERM' TERM
  trap 'forward INT' INT
  for ((node = 0; node < most; node++)); do
    env "${outer[@]}" FT_INFRA_RANK="$node" "${command[@]}" >"$log_dir/node-$node.log" 2>&1 </dev/null &
    pids+=($!)
  done
  set +m
  # A signal that came while nodes were being started has not reached the later ones.
  [[ -z $signal ]] || ((reached == most)) || kill -s "$signal" "${pids[@]:reached}" 2>/dev/null
  printf 'launcher.sh: run %s, %d active and %d spare nodes, logs in %s\n' "$run_id" "$least" "$spares" "$log_dir"
  for ((node = 0; node < most; node++)); do
    wait_for "${pids[node]}"
    ((status == 0)) && continue
    failed=1
    printf 'launcher.sh: node %d exited %d, its log is %s\n' "$node" "$status" "$log_dir/node-$node.log" >&2
  done
  case $signal in
    INT) return 130 ;;
    TERM) return 143 ;;
  esac
  return $failed
}

# --- in a SLURM allocation ---------------------------------------------------------------------------

run_slurm() {
  local most=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-}} head run_id
  is_count "$most" || die "SLURM_JOB_ID is set but SLURM_NNODES is not: run this in a batch script or under salloc"
  active=${active:-$most}
  { is_count "$active" && ((active > 0 && active <= most)); } ||
    die "--active $active is not between 1 and the allocation's $most nodes"
  head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  [[ -n $head ]] || die "scontrol does not name the allocation's hosts: is it in PATH on $(hostname)?"
  run_id=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
  log_dir=${log_dir:-ft-logs/$run_id}
  build_command "$active" "$most" "$head:${port:-29400}" "$run_id"
  # --wait=0: the nodes that go on must not be ended because one has.
  command=(
    srun --no-kill --kill-on-bad-exit=0 --wait=0 --nodes="$most" --ntasks="$most" --ntasks-per-node=1
    --output="$log_dir/node-%t.log" "${command[@]}"
  )
  if [[ $dry_run == yes ]]; then
    show mkdir -p "$log_dir" && printf '\n'
    show "${command[@]}" && printf '\n'
    return 0
  fi
  mkdir -p "$log_dir" || die "the log directory $log_dir cannot be made: pass another --log-dir"
  exec "${command[@]}"
}

if [[ -n $local_nodes ]]; then
  run_local
elif [[ -n ${SLURM_JOB_ID:-} ]]; then
  run_slurm
else
  die "this is no SLURM allocation: pass --local 3+1 to start all nodes here, or submit this script with sbatch"
fi
exit $?
