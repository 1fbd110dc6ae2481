"""Fixtures: the network, pairs of guests, and clusters of two nodes that were made as the guide says."""

import contextlib
import functools
import os
import subprocess
from pathlib import Path

import pytest

import guide
from guests import Guest, Network

# Set by `run.sh`: the program, and the kernel and the images of the guests.
PROGRAM = Path(os.environ["FARFORK_PROGRAM"])
GUESTS = Path(os.environ["FARFORK_GUESTS"])
# `run.sh --emulated` runs only these tests.
collect_ignore = [] if "FARFORK_EMULATED" in os.environ else ["test_emulated.py"]
# Two releases of Debian, so that libc and all other files differ.
RELEASES = {"a": "bookworm", "b": "trixie"}


@pytest.fixture(scope="session")
def ssh_key(tmp_path_factory):
    """A key with which the guests, and this machine, reach each other."""
    path = tmp_path_factory.mktemp("ssh") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


class Pair:
    """Two guests, `a` and `b`, in a network of their own. They reach each other by ssh."""

    def __init__(self, network, directory, ssh_key, clock_offset_s=0, machines=None):
        """`machines` makes each guest, from the arguments of `Guest` after the kernel. By default, both are user-mode Linux."""
        self.network, self.ssh_key = network, ssh_key
        machines = machines or [functools.partial(Guest, GUESTS / "kernel/linux")] * len(RELEASES)
        self.guests = [
            make_guest(GUESTS / f"{release}.img", name, number, network, directory)
            for number, (make_guest, (name, release)) in enumerate(zip(machines, RELEASES.items()), 1)
        ]
        self.a, self.b = self.guests
        self.a.boot()
        self.b.boot(clock_offset_s)
        for guest in self.guests:
            self._start_sshd(guest)
        self.known_hosts = "".join(f"{guest.address} {guest.run('cat /etc/ssh/ssh_host_ed25519_key.pub')}" for guest in self.guests)
        for guest in self.guests:
            guest.write("~/.ssh/known_hosts", self.known_hosts.encode())

    def _start_sshd(self, guest):
        guest.write("~/.ssh/id_ed25519", self.ssh_key.read_bytes())
        guest.write("~/.ssh/authorized_keys", self.ssh_key.with_suffix(".pub").read_bytes())
        guest.run("[[ -e /run/sshd.pid ]] || { mkdir -p /run/sshd && /usr/sbin/sshd; }")

    def other(self, guest):
        return self.b if guest is self.a else self.a

    def join_by_hand(self, options=""):
        """Makes a cluster as docs/guide/several-machines.md says, with further options of `farfork node`."""
        a, b = self.a, self.b
        a.copy(PROGRAM, "/usr/local/bin/farfork")
        a.run(guide.command("scp "))
        a.run(guide.command("farfork cluster init --name a --cluster blue"))
        a.start_node(f"{guide.command('farfork node --name a')} {options}")
        a.run(guide.command("farfork cluster token"))
        b.start_node(f"{guide.command('farfork node --name b')} {options}")
        for guest in self.guests:
            # The files that ssh and these tests have copied, for a loss of power. Those of farfork must survive by themselves.
            guest.run("sync /usr/local/bin/farfork ~/.ssh/*")
        self.require_alive()

    def require_alive(self, limit_s=60):
        for guest in self.guests:
            guest.wait_for(
                "both nodes are alive", guide.command("farfork nodes"), lambda table: table.count("alive") == 2, limit_s
            )


@contextlib.contextmanager
def open_network():
    network = Network()
    try:
        yield network
    finally:
        network.close()


@pytest.fixture(scope="session")
def cluster(ssh_key, tmp_path_factory):
    """A cluster that no test damages."""
    with open_network() as network:
        pair = Pair(network, tmp_path_factory.mktemp("cluster"), ssh_key)
        pair.join_by_hand()
        yield pair


@pytest.fixture
def make_pair(ssh_key, tmp_path):
    """Makes a pair of guests for one test."""
    with open_network() as network:
        yield functools.partial(Pair, network, tmp_path, ssh_key)
