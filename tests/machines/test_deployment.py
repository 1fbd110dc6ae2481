"""`farfork cluster deploy` from a coordinator that is none of the hosts."""

import subprocess

import parents
from conftest import PROGRAM

INVENTORY = """\
known_hosts = "known_hosts"

[defaults]
user = "root"
key = "{key}"

[[hosts]]
name = "a"
address = "10.0.0.1"

[[hosts]]
name = "b"
address = "10.0.0.2"
"""


def test_a_cluster_is_deployed_and_undeployed(make_pair, tmp_path):
    pair = make_pair()
    (tmp_path / "known_hosts").write_text(pair.known_hosts)
    (tmp_path / "HOSTS.toml").write_text(INVENTORY.format(key=pair.ssh_key))

    def coordinate(action):
        command = pair.network.command(str(PROGRAM), "cluster", action, "--inventory", str(tmp_path / "HOSTS.toml"))
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert coordinate("deploy").count("deployed") == 2
    pair.require_alive()
    seed = parents.prepare(pair.a, mib=4)
    assert "on b: 1024 pages, 0 wrong words" in parents.fork(pair.a, seed, "b")
    assert coordinate("deploy").count("unchanged") == 2
    coordinate("undeploy")
    for guest in pair.guests:
        assert guest.run("ls -d /etc/farfork /run/farfork /usr/local/bin/farfork 2>/dev/null || true") == ""
