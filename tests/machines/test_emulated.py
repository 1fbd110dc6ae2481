"""Stock kernels of two versions, and processors that differ. Only `run.sh --emulated` runs these tests, because an emulated machine
is twenty to fifty times slower. Guest `a` has the newer kernel.
"""

import functools

import pytest

import parents
from conftest import Pair, open_network
from emulated_guest import EmulatedGuest

# Processors of QEMU. SandyBridge and Haswell save the same registers, and Haswell has more instruction sets.
ALL, SMALL, LARGE = "max", "SandyBridge", "Haswell"
MIB = 4


@pytest.fixture
def make_emulated(ssh_key, tmp_path):
    """Makes a cluster of two machines with these processors."""
    with open_network() as network:

        def make(processor, other_processor):
            kinds = [("newer", processor), ("older", other_processor)]
            machines = [functools.partial(EmulatedGuest, kernel, its_processor, ssh_key) for kernel, its_processor in kinds]
            pair = Pair(network, tmp_path, ssh_key, machines=machines)
            pair.join_by_hand()
            return pair

        yield make


def require_right_children(parent, other):
    """Children of a parent run on both machines, and every page of them is right."""
    seed = parents.prepare(parent, MIB)
    for strategy in ["cow", "eager"]:
        output = parents.fork(parent, seed, f"{other.name},{parent.name}", f"-n 2 --strategy {strategy}", 300)
        for guest in (parent, other):
            assert f"on {guest.name}: {MIB * 256} pages, 0 wrong words" in output, output
    parent.run(f"farfork drop {seed}")


def require_refusal(parent, other, *words):
    """A fork to the other machine is refused with these words. `--to any` chooses the parent's machine."""
    seed = parents.prepare(parent, MIB)
    status, output = parent.try_run(f"farfork fork {seed} --to {other.name} --payload /tmp/payload")
    assert status != 0, output
    assert all(word in output for word in (other.name, *words)), output
    assert f"on {parent.name}: {MIB * 256} pages, 0 wrong words" in parents.fork(parent, seed, "any", limit_s=300)
    parent.run(f"farfork drop {seed}")


def test_kernels_differ(make_emulated):
    pair = make_emulated(ALL, ALL)
    a, b = pair.guests
    assert a.run("uname -r") != b.run("uname -r")
    require_right_children(a, b)
    require_right_children(b, a)


def test_a_processor_has_more_instruction_sets(make_emulated):
    pair = make_emulated(LARGE, SMALL)
    a, b = pair.guests
    require_right_children(b, a)
    require_refusal(a, b, "avx2", "bmi2")


def test_a_processor_has_more_registers(make_emulated):
    pair = make_emulated(ALL, SMALL)
    a, b = pair.guests
    require_refusal(a, b, "PKRU")
    require_refusal(b, a, "PKRU")
