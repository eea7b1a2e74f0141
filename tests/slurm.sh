#!/usr/bin/env bash
# A sweep on a real Slurm: an array job in which one task is killed and requeued and one node is drained, then `kvlab merge`, and the
# tables of one run in one piece, byte for byte. Slurm runs on this machine alone, without systemd: three nodes that are three daemons.
#
# Needs root, and Debian's slurmctld, slurmd, slurm-client and munge (installed with apt-get when they are not there). About two minutes: so
# long Slurm holds back a requeued task.
# Usage: tests/slurm.sh [path of kvlab]
set -euo pipefail
cd "$(dirname "$0")/.."
kvlab=$(realpath "${1:-target/debug/kvlab}")
if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "SKIPPED: no Slurm here, and no apt-get to install it with"
        exit 0
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "SKIPPED: slurmd runs jobs as root only"
    exit 0
fi

work=$(mktemp -d)
chmod 755 "$work"
daemons=()
cleanup() {
    for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
fail() {
    echo "FAILED: $1" >&2
    tail -n 20 "$work"/*.log >&2 || true
    exit 1
}

# A key and a socket of our own: nothing of an installed munge is touched.
dd if=/dev/urandom of="$work/munge.key" bs=1024 count=1 status=none
chmod 400 "$work/munge.key"
munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
    --log-file="$work/munge.log" --seed-file="$work/munge.seed" >"$work/munged.log" 2>&1 &
daemons+=($!)

host=$(hostname -s)
mkdir "$work/state"
cat >"$work/slurm.conf" <<EOF
ClusterName=kvlab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SchedulerParameters=sched_interval=1
KillWait=2
NodeName=node[1-3] NodeHostname=$host NodeAddr=127.0.0.1 Port=[16821-16823] CPUs=1 State=UNKNOWN
PartitionName=all Nodes=node[1-3] Default=YES MaxTime=10 State=UP
EOF
export SLURM_CONF="$work/slurm.conf"
slurmctld -D >"$work/slurmctld.out.log" 2>&1 &
daemons+=($!)
for node in 1 2 3; do
    mkdir "$work/spool-node$node"
    slurmd -D -N "node$node" >"$work/slurmd-$node.out.log" 2>&1 &
    daemons+=($!)
done
waits() { # waits SECONDS WHAT COMMAND...: until the command succeeds
    local left=$(($1 * 5)) what=$2
    shift 2
    until "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || fail "$what"
        sleep 0.2
    done
}
three_idle() { [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 3 ]; }
waits 60 "three idle nodes" three_idle

"$kvlab" trace synth sinks-and-hitters --sequences 4 --len 96 --prompt 24 --layers 2 --head-dim 8 --vocab 200 --out "$work/trace" >/dev/null 2>&1
cat >"$work/study.yaml" <<EOF
id: slurm
why: Does a sweep on a real batch engine end as one on one machine?
seeds: [0, 1, 2]
eviction:
  budgets: [32, 48]
  recent: 16
  policies: [{use: full}, {use: random}, {use: snapkv}, {use: vase-attnv}, {use: h2o}]
exit: {theta: {from: 0.1, to: 4, steps: 20}, epsilon: [0.2, 1], min_layer: 0}
compare: {baseline: full}
EOF
cd "$work"
mkdir bin
ln -s "$kvlab" bin/kvlab
"$kvlab" sweep study.yaml --trace trace --out whole >/dev/null 2>&1 || fail "the sweep in one piece"
"$kvlab" sweep plan study.yaml --trace trace --out shared --shards 7 --emit slurm --cpus 1 >plan.sbatch
# The job file as it is printed, with this kvlab; a task waits at its first start, so that it can be killed.
{
    sed '/^kvlab sweep/d' plan.sbatch
    echo "PATH=$work/bin:\$PATH"
    echo 'if [ "$SLURM_ARRAY_TASK_ID" = 2 ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 300; fi'
    grep '^kvlab sweep' plan.sbatch
} >study.sbatch
job=$(sbatch --parsable study.sbatch)
runs() { squeue -h -j "${job}_$1" -t running -o %N 2>/dev/null | grep -q node; }
waits 60 "task 2 runs" runs 2

# One task killed and requeued, one node drained while its job runs.
scontrol requeue "${job}_2"
drained=$(squeue -h -j "$job" -t running -o %N | head -n 1)
drained=${drained:-node3}
scontrol update "nodename=$drained" state=drain reason=test
echo "task 2 requeued, $drained drained"
# A busy controller may not answer: silence is no empty queue.
gone() { local left && left=$(squeue -h -j "$job" 2>/dev/null) && [ -z "$left" ]; }
waits 240 "all tasks end" gone
grep -h "^shard" kvlab-slurm-*.log | sort || fail "no task said which shard it is: $(cat kvlab-slurm-*.log)"
[ "$(grep -lh "from SLURM_ARRAY_TASK_ID" kvlab-slurm-*.log | wc -l)" -eq 7 ] || fail "seven tasks said which shard they are"
"$kvlab" status shared || fail "a cell is missing"
"$kvlab" merge shared --out merged 2>/dev/null || fail "the merge"
for table in whole/*; do
    [ -f "$table" ] || continue
    case "$table" in */plan.json) continue ;; esac
    cmp "$table" "merged/$(basename "$table")" || fail "$table differs"
done
"$kvlab" diff whole merged
echo "PASSED: seven shards on Slurm $(slurmctld -V | cut -d' ' -f2), one requeued, one node drained, byte for byte"
