# Several machines in the namespaces of this process. Each has an address of the same network. No other process sees
# this /run and /etc.
mount -t tmpfs tmpfs /run
mkdir /run/etc /run/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work /etc
ip link set lo up
for number in 1 2 3; do ip address add 10.0.0.$number/32 dev lo; done

are_alive() {
    local alive
    alive=$(command farfork nodes --json | grep -c '"state": *"alive"')
    [ "$alive" -ge "$1" ]
}
on_machine() {
    local machine=$1
    shift
    FARFORK_TRUST=/run/$machine.trust FARFORK_RUN_DIR=/run/$machine command farfork "$@" > $machine.log 2>&1 &
}
ssh() { bash -c "$2"; }

# The terminal of a daemon: it stays open while the page continues.
farfork() {
    case "$*" in
        "node --name a --listen 10.0.0.1:7400")
            command farfork "$@" > a.log 2>&1 &
            wait_until are_alive 1
            ;;
        "node --name b --listen 10.0.0.2:7400 "*)
            on_machine b "$@"
            wait_until are_alive 2
            (umask 077; command farfork cluster token > /run/c.token)
            on_machine c node --name c --listen 10.0.0.3:7400 --join 10.0.0.1:7400 --token-file /run/c.token
            wait_until are_alive 3
            python3 job.py 0 > job.log &
            PID=$!
            wait_until grep -q ready job.log
            ;;
        # In the background: the shell's job must be the daemon itself, so that it ends with the shell.
        "node "*) exec farfork "$@" ;;
        *) command farfork "$@" ;;
    esac
}

# "Without a second machine" waits for each daemon after its start. A daemon that is killed earlier leaves its pager
# running.
sleep() {
    for name in a b; do
        if [[ $(jobs -r) == *"--run-dir /run/farfork-$name "* ]]; then
            wait_until command farfork --socket /run/farfork-$name/node.sock nodes
        fi
    done
}
