#!/usr/bin/env bash
# A real SLURM cluster of its own on this machine, for tests: virtual nodes n1, n2 ..., fake GPUs, all on loopback.
#
#   cluster.sh install              get the packages (as root, from a Debian mirror); with CLUSTER_DBD=1 accounting too
#   cluster.sh up                   start it; returns when every node takes jobs. Nothing to do where it runs already
#   cluster.sh down                 end its jobs, then everything that `up` started, and nothing else
#   cluster.sh wipe                 down, and delete its folder
#   cluster.sh env                  what makes SLURM's commands talk to it: eval "$(cluster.sh env)"
#   cluster.sh pid NAME             of slurmctld, slurmd-n1, slurmdbd ...: to freeze it, say
#   cluster.sh kill-node N          SIGKILL a node's slurmd, as when the node dies;       start-node N brings it back
#   cluster.sh kill-ctld            SIGKILL the controller;                               restart-ctld ends and starts it
#   cluster.sh lose-state           the controller dies, and starts without anything that it knew
#   cluster.sh stop-dbd             the accounting goes away;                             start-dbd brings it back
#
# Settings, from the environment, are those of `up`; the other verbs take them from what `up` noted:
#   CLUSTER_ROOT    everything lives here; at most 70 characters (sockets), every parent owned by root or by you and
#                   not writable by others unless sticky, as munge demands it
#   CLUSTER_PORT    20000   first of 20 ports: the controller's, then one for each node; the last two for accounting
#   CLUSTER_NODES   2       CLUSTER_CPUS 8   CLUSTER_MEM 16000 (MiB)   CLUSTER_GPUS 2    of each node; may exceed ours
#   CLUSTER_CGROUP          1: processes are tracked and memory is limited by cgroups, as at most sites; 0: by their
#                           parents, and by sampling every 2 s. 1 where it can be (root, cgroup v1)
#   CLUSTER_DBD     0       1: slurmdbd on a MariaDB of its own, so that sacct answers
#   CLUSTER_EXTRA           more lines of slurm.conf, \n between them; a key given again wins over the one below
set -u
umask 022
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin:${PATH:-}

ROOT=${CLUSTER_ROOT:-/tmp/ratchet-cluster}
ETC=$ROOT/etc RUN=$ROOT/run LOG=$ROOT/log NOTED=$ROOT/settings ME=$(id -un)
# Without it, and without /etc/slurm/slurm.conf, every command looks for a controller in the DNS.
export SLURM_CONF=$ETC/slurm.conf
LOCKED_BY_ANOTHER=75

say() { printf 'cluster: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

can_cgroup() { # of this machine
    local part
    for part in freezer memory; do
        [ "$ME" = root ] && [ -w /sys/fs/cgroup/$part ] && grep -q " /sys/fs/cgroup/$part cgroup " /proc/mounts ||
            { echo 0; return; }
    done
    echo 1
}

settings() { # of the running cluster where there is one, else what the environment asks for
    PORT=${CLUSTER_PORT:-20000} NODES=${CLUSTER_NODES:-2} CPUS=${CLUSTER_CPUS:-8} MEM=${CLUSTER_MEM:-16000}
    GPUS=${CLUSTER_GPUS:-2} CGROUP=${CLUSTER_CGROUP:-$(can_cgroup)} DBD=${CLUSTER_DBD:-0} EXTRA=${CLUSTER_EXTRA:-}
    # shellcheck disable=SC1090
    [ "$1" = asked ] || [ ! -r "$NOTED" ] || . "$NOTED"
    DBD_PORT=$((PORT + 18)) DB_PORT=$((PORT + 19))
}
note_settings() { declare -p PORT NODES CPUS MEM GPUS CGROUP DBD EXTRA | sed 's/^declare -- //' >"$NOTED"; }
nodes() { local i; for ((i = 1; i <= NODES; i++)); do echo "n$i"; done; }

# ----------------------------------------------------------------------------------------------------- processes
# A pid file holds "PID START". Both must agree with /proc, so that a pid which was given again is never hit; and a
# zombie, which `kill -0` calls alive until its parent has asked for it, is dead.

start_time() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # shellcheck disable=SC2086
    set -- ${stat##*) }  # the name in brackets may hold anything
    [ "$1" != Z ] && echo "${20}"
}
alive() {
    local pid start
    read -r pid start 2>/dev/null <"$RUN/$1.ours" && [ -n "$start" ] && [ "$(start_time "$pid")" = "$start" ]
}
pid_of() { local pid _; alive "$1" && read -r pid _ <"$RUN/$1.ours" && echo "$pid"; }

launch() { # NAME COMMAND...: in the foreground of a session of its own, holding none of our files (9 is the lock)
    local name=$1
    shift
    alive "$name" && return
    setsid "$@" </dev/null >>"$LOG/$name.out" 2>&1 9>&- &
    echo "$! $(start_time $!)" >"$RUN/$name.ours"
    disown $!
}
end() { # NAME SECONDS: SIGTERM, and SIGKILL after so many seconds
    local pid i
    if pid=$(pid_of "$1"); then
        kill -CONT "$pid" 2>/dev/null  # a frozen one would take its SIGTERM only then
        kill -TERM "$pid" 2>/dev/null
        for ((i = 0; i < $2 * 20; i++)); do alive "$1" || break; sleep 0.05; done
        alive "$1" && say "$1 (pid $pid) did not end in $2 s: SIGKILL" && kill -KILL "$pid"
    fi
    rm -f "$RUN/$1.ours"
}
kill_at_once() { local pid; pid=$(pid_of "$1") && kill -KILL "$pid"; rm -f "$RUN/$1.ours"; }

within() { # SECONDS COMMAND...: until the command succeeds
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $until ] || return 1; sleep 0.1; done
}
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
errors_of() { grep -hE 'error: |fatal: ' "$LOG/$1.out" | grep -vi pmix | tail -n 4; }

# ------------------------------------------------------------------------------------------------------- install

install_packages() {
    local packages=(munge slurmctld slurmd slurm-client) policy=/usr/sbin/policy-rc.d made='' code=0
    [ "${CLUSTER_DBD:-0}" = 1 ] && packages+=(slurmdbd mariadb-server)
    if dpkg-query -W -f='${Status}\n' "${packages[@]}" 2>/dev/null | grep -c '^install ok' | grep -qx ${#packages[@]}; then
        return
    fi
    # Debian starts a service when it is installed; this file says no. One that stands there already stays.
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && made=1; }
    export DEBIAN_FRONTEND=noninteractive
    local get=(apt-get install -y -qq --no-install-recommends "${packages[@]}")  # recommended: 35 packages more
    "${get[@]}" >/dev/null || { apt-get update -qq && "${get[@]}" >/dev/null; } || code=$?
    [ -z "$made" ] || rm -f $policy
    return $code
}

# ------------------------------------------------------------------------------------------------- configuration

listening() { # No*InAddrAny binds to what this host's own name means: right for 127.*, fatal where it means nothing,
    # and nobody listens on 127.0.0.1 where it means an outer address, as in many containers
    case $(getent ahostsv4 "$(hostname)" | awk 'NR == 1 {print $1}') in
        127.*) echo "CommunicationParameters=NoInAddrAny$1" ;;
        *) echo "# on every address: the name of this host is not a loopback address" ;;
    esac
}

slurm_conf() {
    cat <<CONF
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$PORT
$(listening ,NoCtldInAddrAny)
SlurmUser=$ME
SlurmdUser=$ME
AuthType=auth/munge
AuthInfo=socket=$RUN/munge.socket
CredType=cred/munge
MpiDefault=none
SwitchType=switch/none
StateSaveLocation=$ROOT/state
SlurmdSpoolDir=$ROOT/spool/%n
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/slurmd-%n.pid
SlurmctldDebug=verbose
SlurmdDebug=verbose
MailProg=/bin/true
PropagateResourceLimits=NONE
SlurmctldTimeout=30
SlurmdTimeout=300
KillWait=30
MinJobAge=300
FirstJobId=$((PORT * 1000))  # jobs of two clusters on this machine would be in one cgroup
MessageTimeout=10
UnkillableStepTimeout=120
ReturnToService=2
JobRequeue=1
# without these a job waits 1 to 3 s for the scheduler's next pass
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
SlurmdParameters=config_overrides  # a node may claim more than this machine has
CONF
    if [ "$CGROUP" = 1 ]; then  # the controller refuses OverMemoryKill beside cgroups that constrain memory
        printf '%s\n' ProctrackType=proctrack/cgroup TaskPlugin=task/cgroup
    else
        printf '%s\n' ProctrackType=proctrack/linuxproc TaskPlugin=task/none JobAcctGatherParams=OverMemoryKill
    fi
    if [ "$DBD" = 1 ]; then
        # towards slurmdbd AuthInfo is not looked at: the munge socket is given as the "password"
        printf 'AccountingStorage%s\n' Type=accounting_storage/slurmdbd Host=127.0.0.1 "Port=$DBD_PORT" \
            "Pass=$RUN/munge.socket" TRES=gres/gpu
    else
        echo AccountingStorageType=accounting_storage/none
    fi
    local gres='' i=0 node
    [ "$GPUS" -gt 0 ] && gres=" Gres=gpu:a100:$GPUS" && echo GresTypes=gpu
    for node in $(nodes); do
        i=$((i + 1))
        echo "NodeName=$node NodeAddr=127.0.0.1 NodeHostname=localhost Port=$((PORT + i))" \
            "CPUs=$CPUS RealMemory=$MEM$gres State=UNKNOWN"
    done
    cat <<CONF
PartitionName=DEFAULT Nodes=ALL MaxTime=UNLIMITED DefaultTime=60 DefMemPerCPU=100 State=UP
PartitionName=cpu     Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=gpu     PriorityTier=10 PreemptMode=OFF
PartitionName=low     PriorityTier=1  PreemptMode=REQUEUE
PartitionName=high    PriorityTier=20 PreemptMode=OFF
CONF
    printf '%b\n' "$EXTRA"
}

fake_gpus() { # A gpu needs File=, and a character device: with a regular file CUDA_VISIBLE_DEVICES stays empty
    local i devices='' spare=(/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx)
    [ "$GPUS" -gt 0 ] || return 0
    mkdir -p "$ROOT/dev"
    for ((i = 0; i < GPUS; i++)); do
        if [ -c "$ROOT/dev/nvidia$i" ] || mknod -m 666 "$ROOT/dev/nvidia$i" c 1 3 2>/dev/null; then
            devices+=,$ROOT/dev/nvidia$i
        else
            devices+=,${spare[i]:?fewer CLUSTER_GPUS, or root}
        fi
    done
    echo "NodeName=n[1-$NODES] Name=gpu Type=a100 File=${devices#,}"
}

slurmdbd_conf() {
    cat <<CONF
AuthType=auth/munge
AuthInfo=socket=$RUN/munge.socket
$(listening '')
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$DBD_PORT
SlurmUser=$ME
LogFile=$LOG/slurmdbd.log
PidFile=$RUN/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$DB_PORT
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CommitDelay=1
CONF
}

write_configuration() {
    slurm_conf >"$ETC/slurm.conf"
    fake_gpus >"$ETC/gres.conf" || die "no character device for every fake GPU"
    printf '%s\n' CgroupPlugin=autodetect CgroupAutomount=yes ConstrainCores=no ConstrainSwapSpace=no \
        ConstrainDevices=no "ConstrainRAMSpace=$([ "$CGROUP" = 1 ] && echo yes || echo no)" >"$ETC/cgroup.conf"
    [ "$DBD" = 0 ] || (umask 077 && slurmdbd_conf >"$ETC/slurmdbd.conf")  # it refuses one that others can read
}

# -------------------------------------------------------------------------------------------------------- starting

start_munge() {
    [ -s "$ETC/munge.key" ] || (umask 077 && dd if=/dev/urandom of="$ETC/munge.key" bs=1 count=1024 status=none)
    alive munged || rm -f "$RUN/munge.socket" "$RUN/munge.socket.lock"
    launch munged munged --foreground --key-file="$ETC/munge.key" --socket="$RUN/munge.socket" \
        --pid-file="$RUN/munged.pid" --log-file="$LOG/munged.log" --seed-file="$ROOT/state/munge.seed" --num-threads=4
    within 120 bash -c "munge -S '$RUN/munge.socket' -n | unmunge -S '$RUN/munge.socket'" ||
        die "munged does not answer: $(tail -n 2 "$LOG/munged.out" "$LOG/munged.log" 2>/dev/null)"
}

start_accounting() {
    local db=(mariadb --no-defaults -S "$RUN/mysql.sock" -u root)
    [ -d "$ROOT/mysql/mysql" ] || mariadb-install-db --no-defaults --user="$ME" --datadir="$ROOT/mysql" \
        --auth-root-authentication-method=normal --skip-test-db >"$LOG/mariadb-install.log" 2>&1 ||
        die "no database: $(tail -n 3 "$LOG/mariadb-install.log")"
    launch mariadbd mariadbd --no-defaults --user="$ME" --datadir="$ROOT/mysql" --socket="$RUN/mysql.sock" \
        --pid-file="$RUN/mariadbd.pid" --bind-address=127.0.0.1 --port="$DB_PORT" --innodb-buffer-pool-size=64M \
        --innodb-log-file-size=16M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 --skip-log-bin
    within 120 "${db[@]}" -e 'select 1' || die "the database does not answer: $(tail -n 4 "$LOG/mariadbd.out")"
    "${db[@]}" -e "create database if not exists slurm_acct_db;
        create user if not exists slurm@'127.0.0.1' identified by 'slurm';
        create user if not exists slurm@localhost identified by 'slurm';
        grant all on slurm_acct_db.* to slurm@'127.0.0.1'; grant all on slurm_acct_db.* to slurm@localhost;" ||
        die "the database cannot be prepared"
    launch slurmdbd slurmdbd -D
    within 120 sacctmgr -n list cluster || die "slurmdbd does not answer: $(tail -n 4 "$LOG/slurmdbd.log")"
    [ -n "$(sacctmgr -n list cluster format=cluster)" ] || sacctmgr -i add cluster test >/dev/null
}

start_controller() {
    launch slurmctld slurmctld -D -f "$SLURM_CONF"
    # it can hang after a fatal error, SIGTERM ignored: so its log is looked at too
    within 120 bash -c "scontrol ping || grep -q 'fatal: ' '$LOG/slurmctld.out'"
    scontrol ping >/dev/null 2>&1 || die "slurmctld does not answer: $(errors_of slurmctld)"
}
start_node() { launch "slurmd-$1" slurmd -D -N "$1" -f "$SLURM_CONF"; }

all_ready() { # a node in any other state, or with a flag such as * (does not respond), is not ready
    [ "$(sinfo -h -N -o '%N %T' 2>/dev/null | sort -u | grep -cE ' (idle|mixed|allocated|reserved|planned)$')" = "$NODES" ]
}

up() {
    local program node
    for program in munged munge slurmctld slurmd sbatch sinfo $([ "$DBD" = 0 ] || echo slurmdbd mariadbd sacctmgr); do
        command -v "$program" >/dev/null || die "$program is missing: $0 install"
    done
    mkdir -p "$ETC" "$RUN" "$LOG" "$ROOT/state" "$ROOT/spool" && chmod 700 "$ROOT/state" || die "cannot write in $ROOT"
    exec 9>"$ROOT/lock"
    flock -w 120 9 || { say "somebody else starts or ends $ROOT"; exit $LOCKED_BY_ANOTHER; }
    if alive slurmctld; then
        settings noted
        all_ready && { say "is up already"; return; }
    else
        listens "$PORT" && die "port $PORT is taken"
        note_settings
        write_configuration
        : >"$LOG/slurmctld.out"
    fi
    start_munge
    [ "$DBD" = 0 ] || start_accounting
    start_controller
    for node in $(nodes); do start_node "$node"; done
    if ! within 3 all_ready; then  # a node that was down or drained before stays so: the controller kept its state
        for node in $(nodes); do scontrol update nodename="$node" state=resume 2>/dev/null; done
        within 120 all_ready || die "not all nodes are ready: $(sinfo -h -N -o '%N %T' | tr '\n' ';') $(errors_of slurmctld)"
    fi
    say "is up: $NODES nodes, $SLURM_CONF"
}

# ---------------------------------------------------------------------------------------------------------- ending

job_processes() { # What is left of this cluster's jobs: its slurmstepd's (they hold our files open), all that descends
    # from those, and what lost its parent but has our SLURM_CONF and a job's id in its environment. Never this script
    # or who called it, which may be such a process.
    local folder pid ours='' callers=' '
    for ((pid = $$; pid > 1; )); do
        callers+="$pid "
        pid=$(awk '/^PPid:/ {print $2}' "/proc/$pid/status" 2>/dev/null) || break
    done
    for folder in /proc/[0-9]*; do
        case $(readlink "$folder/exe" 2>/dev/null) in
            '') continue ;;
            */slurmstepd) ls -l "$folder/fd" 2>/dev/null | grep -qF " $ROOT/" || continue ;;
            *) tr '\0' '\n' 2>/dev/null <"$folder/environ" |
                awk -v conf="SLURM_CONF=$SLURM_CONF" '$0 == conf {a = 1} /^SLURM_JOB_ID=[0-9]/ {b = 1}
                    END {exit !(a && b)}' || continue ;;
        esac
        ours+=" ${folder#/proc/}"
    done
    ps -eo pid=,ppid= | awk -v ours="$ours" -v callers="$callers" '
        BEGIN {n = split(ours, a, " "); for (i = 1; i <= n; i++) found[a[i]]
               n = split(callers, a, " "); for (i = 1; i <= n; i++) spared[a[i]]}
        {parent[$1] = $2}
        END {do {more = 0
                 for (p in parent) if (!(p in found) && (parent[p] in found)) {found[p]; more = 1}} while (more)
             for (p in found) if (!(p in spared)) print p}'
}

down() {
    local jobs pid name
    [ -d "$RUN" ] || return 0
    exec 9>"$ROOT/lock"
    flock -w 120 9 || die "somebody else starts or ends $ROOT"
    pid=$(pid_of slurmctld) && kill -CONT "$pid"
    if alive slurmctld && jobs=$(squeue -h -a -r -o %A) && [ -n "$jobs" ]; then
        # shellcheck disable=SC2086
        scancel $jobs
        within 60 bash -c '[ -z "$(squeue -h -a -t running,completing -o %A)" ]' || say "jobs still complete"
    fi
    for name in "$RUN"/slurmd-*.ours; do [ -e "$name" ] && end "$(basename "$name" .ours)" 5; done
    for pid in $(job_processes); do
        say "left over of a job: $pid $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c1-60)"
        kill -KILL "$pid" 2>/dev/null
    done
    end slurmctld 10
    end slurmdbd 10
    end mariadbd 30
    end munged 5
    # slurmd leaves its cgroups behind, empty; another cluster may be about to use them
    [ "$CGROUP" = 0 ] || pgrep -x slurmd >/dev/null || for name in $(nodes); do
        find /sys/fs/cgroup/*/slurm_"$name" -depth -type d -exec rmdir {} + 2>/dev/null
    done
    return 0
}

wipe() {
    down
    case $ROOT in / | /tmp | /var* | /usr* | /etc* | /home | /root | '') die "will not delete $ROOT" ;; esac
    rm -rf --one-file-system "$ROOT"
}

settings "$([ "${1:-}" = up ] && echo asked || echo noted)"
case ${1:-} in
    install) install_packages ;;
    up)
        ran=$(alive slurmctld && echo yes)
        (up)  # a start that fails takes down what it began, and nothing that ran before
        code=$?
        [ $code = 0 ] || [ $code = $LOCKED_BY_ANOTHER ] || [ -n "$ran" ] || (settings noted; down)
        exit $code
        ;;
    down) down ;;
    wipe) wipe ;;
    env) printf 'export SLURM_CONF=%q CLUSTER_ROOT=%q\n' "$SLURM_CONF" "$ROOT" ;;
    pid) pid_of "${2:?}" ;;
    kill-node) kill_at_once "slurmd-${2:?}" ;;
    start-node) start_node "${2:?}" ;;
    kill-ctld) kill_at_once slurmctld ;;
    restart-ctld) end slurmctld 15 && start_controller ;;
    lose-state) kill_at_once slurmctld && rm -rf "${ROOT:?}/state" && mkdir -m 700 "$ROOT/state" && start_controller ;;
    stop-dbd) end slurmdbd 10 ;;
    start-dbd) start_accounting ;;
    *)
        sed -n '2,/^set -u/ s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
esac
