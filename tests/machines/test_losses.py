"""Machines that are switched off or cut off while others need them."""

import time

import guide
import parents

# 48 MiB of pages, 20 ms each: longer than any test waits.
SLOW = {"mib": 48, "wait_us": 20_000}


def test_the_owner_of_pages_is_switched_off(make_pair):
    pair = make_pair()
    pair.join_by_hand()
    a, b = pair.guests
    seed = parents.prepare(a, **SLOW)
    identity = parents.start(a, seed, "b", "--strategy cow,first")
    a.power_off()
    b.wait_for("the child has ended", f"farfork inspect {identity}", lambda text: "SIGBUS" in text, limit_s=90)
    log = b.run(f"farfork logs {identity}; farfork inspect {identity}; tail -5 /run/farfork/pager.log")
    assert seed in log, log


def test_the_node_of_a_child_is_switched_off(make_pair):
    pair = make_pair()
    pair.join_by_hand()
    a, b = pair.guests
    seed = parents.prepare(a, **SLOW)
    a.run(
        f"(farfork fork {seed} --to b --payload /tmp/payload --strategy cow,first; echo status $? at $(date +%s.%N)) "
        ">/tmp/fork 2>&1 </dev/null & disown"
    )
    a.wait_for("the child runs", "farfork ps --running", lambda table: "running" in table)
    b.power_off()
    output = a.wait_for("the fork has ended", "cat /tmp/fork", lambda text: "status" in text)
    assert "node `b`" in output and "status 1" in output, output
    a.run(f"farfork drop --force {seed}")


def test_a_short_partition_delays_children(make_pair):
    pair = make_pair()
    pair.join_by_hand()
    a, b = pair.guests
    seed = parents.prepare(a, mib=8, wait_us=2000)
    identity = parents.start(a, seed, "b", "--strategy cow,first")
    b.disconnect()
    time.sleep(7)
    b.connect()
    output = b.wait_for("the child has ended", f"farfork wait {identity} && farfork logs {identity}", lambda _: True)
    assert "2048 pages, 0 wrong words" in output, output
    pair.require_alive()


def test_a_long_partition_ends_children_that_need_pages(make_pair):
    pair = make_pair()
    pair.join_by_hand()
    a, b = pair.guests
    seed = parents.prepare(a, **SLOW)
    lost = parents.start(a, seed, "b", "--strategy cow,first")
    settled = parents.start(a, seed, "b", "--strategy eager")
    b.run(f"farfork settle {settled}")
    b.disconnect()
    end = time.monotonic() + 120
    b.wait_for("a is unreachable", "farfork nodes", lambda table: "unreachable" in table)
    b.wait_for("the child has ended", f"farfork inspect {lost}", lambda text: "SIGBUS" in text, limit_s=180)
    time.sleep(max(0, end - time.monotonic()))
    assert parents.child(b, settled)["state"] == "running"
    b.connect()
    pair.require_alive()
    seed = parents.prepare(a, mib=4)
    assert "0 wrong words" in parents.fork(a, seed, "b")


def test_a_node_returns_after_a_reboot_without_a_token(make_pair):
    pair = make_pair()
    pair.join_by_hand()
    for guest in pair.guests:
        guest.power_off()
    service = guide.service_command()
    for guest in pair.guests:
        guest.boot()
        command = service.replace("--name a", f"--name {guest.name}").replace(pair.a.address, guest.address)
        guest.start_node(command)
    pair.require_alive()
    seed = parents.prepare(pair.b, mib=4)
    assert "on a: 1024 pages, 0 wrong words" in parents.fork(pair.b, seed, "a")


def test_children_stay_below_the_group_of_the_service(cluster):
    a, b = cluster.guests
    seed = parents.prepare(a, **SLOW)
    identity = parents.start(a, seed, "b")
    pid = parents.child(b, identity)["pid"]
    group = b.run(f"cat /proc/{pid}/cgroup").strip()
    kind = b.run("cat /sys/fs/cgroup/system.slice/farfork.service/cgroup.type").strip()
    b.run(f"farfork kill {identity}")
    a.run(f"farfork drop {seed}")
    assert group.startswith("0::/system.slice/farfork.service/"), group
    assert kind == "domain", kind
