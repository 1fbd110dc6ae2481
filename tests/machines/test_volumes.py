"""A volume over two machines, which agree in an etcd on this machine."""

import subprocess

import pytest

import guide
from guests import HOST_ADDRESS

VOLUME_OPTIONS = f"--catalog etcd://{HOST_ADDRESS}:2379 --volumes /var/lib/farfork/volumes"
ETCD = f"http://{HOST_ADDRESS}:2379"


@pytest.fixture
def volume(make_pair, tmp_path):
    """A pair with a volume, which is mounted on both guests."""
    pair = make_pair()
    command = ["etcd", "--data-dir", tmp_path / "etcd", "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]
    with open(tmp_path / "etcd.log", "wb") as log:
        etcd = subprocess.Popen(pair.network.command(*command), stdout=log, stderr=log)
    try:
        pair.join_by_hand(VOLUME_OPTIONS)
        pair.a.run("farfork volume create data --replicas a,b")
        for guest in pair.guests:
            guest.run("mkdir -p /data && farfork volume mount data /data")
        yield pair
    finally:
        etcd.kill()
        etcd.wait()


WRITE = "dd if=/dev/urandom of=/data/{name} bs=1M count=8 conv=fsync 2>/dev/null && md5sum </data/{name}"


def test_both_machines_write_and_read(volume):
    a, b = volume.guests
    for writer, reader in [(a, b), (b, a)]:
        digest = writer.run(WRITE.format(name=writer.name))
        assert reader.run(f"md5sum </data/{writer.name}") == digest
    a.run("farfork volume check data")


@pytest.mark.parametrize("victim", ["a", "b"])
def test_the_writer_is_switched_off(volume, victim):
    """Guest `a` is the head of the chain."""
    lost = getattr(volume, victim)
    survivor = volume.other(lost)
    digest = lost.run(WRITE.format(name="acknowledged"))
    lost.power_off()
    assert survivor.run("md5sum </data/acknowledged") == digest
    survivor.run(WRITE.format(name="later"))

    lost.boot()
    command = guide.service_command().replace("--name a", f"--name {lost.name}").replace("10.0.0.1", lost.address)
    lost.start_node(f"{command} {VOLUME_OPTIONS}")
    status = survivor.wait_for(
        "the replica is complete again", "farfork volume status data", lambda text: text.count("live") >= 2, limit_s=90
    )
    assert lost.name in status
    lost.run("mkdir -p /data && farfork volume mount data /data")
    assert lost.run("md5sum </data/acknowledged") == digest
