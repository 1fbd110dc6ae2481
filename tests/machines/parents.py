"""Parents of the tests, and the forks of their seeds."""

import json


def prepare_program(guest, command):
    """Starts a program that prints `ready`, prepares it, and ends it. Returns the seed."""
    pid = guest.run(
        f"{command} >/tmp/parent 2>&1 </dev/null & parent=$!; disown; echo $parent; "
        "until grep -q ready /tmp/parent; do kill -0 $parent && sleep 0.05; done"
    ).strip()
    seed = guest.run(f"farfork prepare {pid}").splitlines()[-1]
    guest.run(f"kill -9 {pid}")
    return seed


def prepare(guest, mib=16, wait_us=0):
    """Prepares `check_pages` on a guest, and ends it. Returns the seed."""
    seed = prepare_program(guest, f"check_pages {mib} {wait_us}")
    guest.run("echo payload >/tmp/payload")
    return seed


def fork(guest, seed, to, options="", limit_s=120):
    """Starts attached children. Returns their output."""
    return guest.run(f"farfork fork {seed} --to {to} --payload /tmp/payload {options}", limit_s)


def start(guest, seed, to, options=""):
    """Starts one child in the background. Returns its id."""
    return fork(guest, seed, to, f"--detach {options}").splitlines()[-1]


def child(guest, child_id):
    """What the node of a child knows about it."""
    children = json.loads(guest.run("farfork ps --here --json"))["children"]
    return next(child for child in children if child["child"] == child_id)


def age(guest, child_id):
    """The age of a child in the table of `farfork ps` of a guest, as text."""
    header, *rows = guest.run("farfork ps").splitlines()
    row = next(row for row in rows if row.startswith(child_id))
    begin = header.index("AGE")
    return row[begin:].split()[0]
