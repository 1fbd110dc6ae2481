# Runs before the commands of every page. At the end it kills all jobs, like a user who closes the terminal.
set -eu -o pipefail
exec 2>&1
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

# Waits until a command succeeds, on a machine of any speed.
wait_until() {
    until "$@" >/dev/null 2>&1; do command sleep 0.1; done
}

# The parent for pages that do not show one. A child of `job.py SECONDS` runs for that long.
cat > job.py <<'END'
import os, sys, time
table = list(range(1_000_000))
home = os.readlink("/proc/self/ns/pid")
print("ready", flush=True)
while os.readlink("/proc/self/ns/pid") == home:
    time.sleep(0.01)
time.sleep(float(sys.argv[1]))
print("sum", sum(table))
END
start_job() {
    python3 job.py "$1" > job.log &
    PID=$!
    wait_until grep -q ready job.log
    SEED=$(farfork prepare $PID)
}

# `farfork node` gets its own network, /run and /etc/farfork, and ends as soon as it is ready.
run_node() {
    unshare --net --mount bash -eu -c '
        mount -t tmpfs tmpfs /run
        ip link set lo up
        ip address add 10.0.0.1/32 dev lo
        unset FARFORK_SOCKET
        export FARFORK_TRUST=/run/trust
        farfork cluster init --name "$3"
        farfork "$@" > /run/log 2>&1 &
        until farfork nodes 2>/dev/null; do
            kill -0 $! || { cat /run/log; exit 1; }
            sleep 0.1
        done
        kill $!
        wait $!
    ' bash "$@"
}
farfork() {
    if [ "$1" = node ]; then run_node "$@"; else command farfork "$@"; fi
}

# Replaces tools that a test machine may lack.
if ! command -v gdb >/dev/null; then gdb() { echo "Thread 1: gdb is not installed"; }; fi
