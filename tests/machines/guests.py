"""Guests: machines with a kernel, a root file system and a clock of their own, which run as processes of this machine.

A guest is a user-mode Linux. Its network device is a tap device at a bridge, in a network namespace that the run makes. Its
root file system is an image, under a private layer that survives a reboot. Commands for the guest, and their output, are
files of a directory that both see (`guest/agent.py`).
"""

import contextlib
import itertools
import os
import signal
import subprocess
import time
from pathlib import Path

# The guests are a day ahead, so that the files of their images are old even if a test sets a clock back.
CLOCK_AHEAD_S = 24 * 3600
MEMORY = "1G"
BRIDGE = "bridge"
# The address of this machine in the guests' network.
HOST_ADDRESS = "10.0.0.254"
# Where a guest keeps the log of its daemon.
NODE_LOG = "/var/log/farfork.log"


class GuestError(AssertionError):
    """A command in a guest failed, or a guest does not answer."""


_networks = itertools.count()


class Network:
    """A bridge in a network namespace, which has the address `HOST_ADDRESS` at it."""

    def __init__(self):
        self.namespace = f"ff-machines-{os.getpid()}-{next(_networks)}"
        self.guests = []
        _run("ip", "netns", "add", self.namespace)
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", BRIDGE, "type", "bridge")
        # The guests' devices lose most of what this machine sends in larger segments.
        self.ip("link", "set", BRIDGE, "gso_max_segs", "1", "gso_max_size", "1500")
        self.ip("address", "add", f"{HOST_ADDRESS}/24", "dev", BRIDGE)
        self.ip("link", "set", BRIDGE, "up")

    def ip(self, *arguments):
        _run("ip", "-n", self.namespace, *arguments)

    def command(self, *arguments):
        """The arguments of a command that runs a program of this machine in the network."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def close(self):
        """Switches off the guests, and removes the network."""
        for guest in self.guests:
            guest.power_off()
        _run("ip", "netns", "delete", self.namespace)


class Guest:
    """A machine. `name` is its host name, `number` the last part of its address, and `image` its root file system."""

    boot_limit_s = 60
    # By which time limits of this file and of tests are multiplied.
    slowness = 1

    def __init__(self, kernel, image, name, number, network, directory):
        self.name, self.network = name, network
        self.address = f"10.0.0.{number}"
        self._kernel, self._image = kernel, image
        self._mac = f"02:00:00:00:00:{number:02x}"
        self._directory = Path(directory) / name
        self.control = self._directory / "control"
        self._log = self._directory / "log"
        self._tap = f"tap-{name}"
        self._commands = itertools.count()
        self._process = None
        network.guests.append(self)
        self.control.mkdir(parents=True)
        (self._directory / "tmp").mkdir()
        network.ip("tuntap", "add", "dev", self._tap, "mode", "tap")
        network.ip("link", "set", self._tap, "master", BRIDGE)
        network.ip("link", "set", self._tap, "up")

    def boot(self, clock_offset_s=0):
        """Starts the machine, and waits until its agent runs. Its clock differs from the other guests' by `clock_offset_s`."""
        clock = int(time.time() + CLOCK_AHEAD_S + clock_offset_s)
        parameters = {"init": "/init", "guest": self.name, "address": self.address, "clock": clock}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.network.command(*self._boot_command(parameters))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": "/dev/shm"}, start_new_session=True,
            )
        wait_until(f"{self.name} boots", self.boot_limit_s, lambda: self._is_up() or self._require_running())

    def _boot_command(self, parameters):
        """The command that runs the machine. The parameters are for the kernel, which passes them to `guest/init`."""
        for file in self.control.iterdir():
            file.unlink()
        parameters |= {
            "mem": MEMORY, "ncpus": 2, "seccomp": "on",
            "ubd0": f"{self._directory}/layer,{self._image}", "root": "/dev/ubda",
            "umid": self.name, "uml_dir": f"{self._directory}/uml",
            "vec0:transport": f"tap,ifname={self._tap},depth=64,mac={self._mac}", "device": "vec0",
            "con": "null", "con0": "null,fd:1", "ssl": "null", "shared": self.control,
        }
        return [str(self._kernel), "rw", "quiet", *(f"{name}={value}" for name, value in parameters.items())]

    def _is_up(self):
        return b"GUEST IS UP" in self._log.read_bytes()

    def _require_running(self):
        if self._process is None or self._process.poll() is not None:
            raise GuestError(f"{self.name} does not run:\n{self._log.read_text(errors='replace')[-2000:]}")

    def power_off(self):
        """Ends the machine at once, as a loss of power does. Its root file system stays as it was written."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def disconnect(self):
        """Takes the machine from the network. Nothing tells it so."""
        self.network.ip("link", "set", self._tap, "nomaster")

    def connect(self):
        self.network.ip("link", "set", self._tap, "master", BRIDGE)

    def try_run(self, script, limit_s=60):
        """Runs a script of bash(1). Returns its exit status, -1 after the time limit, and its output."""
        number = next(self._commands)
        new, command, output, status = (
            self.control / f"{number}.{kind}" for kind in ("new", "command", "output", "status")
        )
        new.write_text(f"{limit_s}\n{script}", encoding="utf-8")
        new.rename(command)
        wait_until(f"{self.name} answers", limit_s + 30, lambda: status.exists() or self._require_running(), 0.01)
        return int(status.read_text()), output.read_text(errors="replace")

    def run(self, script, limit_s=60):
        """Runs a script of bash(1), which must succeed. Returns its output."""
        status, output = self.try_run(script, limit_s)
        if status != 0:
            raise GuestError(f"{self.name}: {script}\nexit status {status}\n{output}")
        return output

    def start_service(self, command):
        """Starts a daemon in a control group of its own, as systemd does."""
        group = "/sys/fs/cgroup/system.slice/farfork.service"
        script = f"echo $BASHPID >{group}/cgroup.procs; exec {command} >>{NODE_LOG} 2>&1"
        self.run(f"mkdir -p {group}; ({script}) </dev/null & disown")

    def start_node(self, command):
        """Starts a node, and waits until it answers."""
        self.start_service(command)
        try:
            self.wait_for("the node answers", "farfork nodes", lambda _: True)
        except GuestError as error:
            raise GuestError(f"{error}\n{self.run(f'tail -20 {NODE_LOG}')}") from None

    def wait_for(self, what, script, is_reached, limit_s=60):
        """Runs a script until it succeeds with an output that fulfils the condition. Returns that output."""
        limit_s *= self.slowness
        end = time.monotonic() + limit_s
        while True:
            status, output = self.try_run(script)
            if status == 0 and is_reached(output):
                return output
            if time.monotonic() > end:
                raise GuestError(f"{self.name}: not within {limit_s} s: {what}; the last answer is\n{output}")
            time.sleep(0.2)

    def write(self, path, content):
        """Writes a file in the guest."""
        file = self.control / "file"
        file.write_bytes(content)
        self.run(f"install -D -m 600 /control/file {path}")

    def copy(self, source, path):
        """Copies a program of this machine into the guest."""
        _run("cp", str(source), str(self.control / "file"))
        self.run(f"install -D -m 755 /control/file {path}")


def wait_until(what, limit_s, is_reached, interval_s=0.05):
    """Waits until a condition holds."""
    end = time.monotonic() + limit_s
    while not is_reached():
        if time.monotonic() > end:
            raise GuestError(f"not within {limit_s} s: {what}")
        time.sleep(interval_s)


def _run(*command):
    subprocess.run(command, check=True)
