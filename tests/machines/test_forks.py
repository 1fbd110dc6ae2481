"""Forks between machines with another kernel instance, clock, libc and root file system."""

import json
import re
import time

import pytest

import parents
from guests import GuestError

STRATEGIES = ["cow", "prefetch", "eager", "prefetch,cache", "cow,cache,first"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("source", ["a", "b"])
def test_every_page_is_right(cluster, source, strategy):
    parent = getattr(cluster, source)
    other = cluster.other(parent)
    seed = parents.prepare(parent)
    output = parents.fork(parent, seed, f"{other.name},{parent.name}", f"-n 4 --strategy {strategy}")
    for guest in cluster.guests:
        assert output.count(f"on {guest.name}: 4096 pages, 0 wrong words") == 2, output
    parent.run(f"farfork drop {seed}")


# A file that is open in the parent: its content on the parent's machine and on the other one, and what the child reads.
FILES = {
    "only_there": ("of the parent\n", None),
    "other_content": ("of the parent\n", "of the node!!\n"),
    "other_length": ("of the parent\n", "short\n"),
    "same": ("of both\n", "of both\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_an_open_file_differs(cluster, name):
    a, b = cluster.guests
    path = f"/opt/{name}"
    for guest, content in zip((a, b), FILES[name]):
        if content is not None:
            guest.write(path, content.encode())
    # cat(1) reads the descriptor from the offset at which the parent has it: the begin.
    reader = "echo ready; until [[ -e /run/farfork/payload ]]; do sleep 0.05; done; cat <&7"
    seed = parents.prepare_program(a, f"bash -c '{reader}' 7<{path}")
    a.run("echo payload >/tmp/payload")
    status, output = a.try_run(f"farfork fork {seed} --to b --payload /tmp/payload")
    # Either the child reads what the parent would read, or the fork is refused with the name of the file.
    assert output == FILES[name][0] if status == 0 else path in output, (status, output)
    a.run(f"farfork drop {seed}")


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_is_wrong(make_pair, hours):
    pair = make_pair()
    pair.join_by_hand()
    pair.b.run(f"date --set @$(($(date +%s) + {hours * 3600}))")
    pair.require_alive()
    for parent in pair.guests:
        other = pair.other(parent)
        seed = parents.prepare(parent, mib=4)
        identity = parents.start(parent, seed, other.name)
        time.sleep(3)
        for guest in pair.guests:
            # Neither nothing nor an hour, however slow the machine is.
            assert re.fullmatch(r"[2-9]s|[1-5][0-9]s|[1-9]m", parents.age(guest, identity)), guest.run("farfork ps; date")
        parent.run(f"farfork drop --force {seed}")


def test_a_machine_whose_clock_is_late_cannot_join(make_pair):
    """It cannot verify a certificate that will be issued in an hour. The error says so."""
    pair = make_pair(clock_offset_s=-3600)
    with pytest.raises(GuestError, match="not valid yet; compare the clocks of both machines"):
        pair.join_by_hand()


def test_the_machines_differ(cluster):
    """The other tests rely on it: each machine has a libc and a boot of its own."""
    versions = [guest.run("ldd --version | head -1; cat /proc/sys/kernel/random/boot_id") for guest in cluster.guests]
    assert versions[0].splitlines()[0] != versions[1].splitlines()[0]
    assert versions[0].splitlines()[1] != versions[1].splitlines()[1]
    nodes = json.loads(cluster.a.run("farfork nodes --json"))["nodes"]
    assert [node["state"] for node in nodes] == ["alive", "alive"]
