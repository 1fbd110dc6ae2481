"""Machines with another processor and a stock kernel: guests of QEMU, which emulates each instruction."""

import os
import subprocess
from pathlib import Path

from guests import Guest

EMULATED = Path(os.environ["FARFORK_GUESTS"]) / "emulated"
MEMORY = "1536M"


class EmulatedGuest(Guest):
    """A guest with one of the kernels of `emulated/build.sh`, and a processor of QEMU. Commands run by ssh."""

    boot_limit_s = 400
    slowness = 6

    def __init__(self, kernel, processor, ssh_key, *arguments):
        super().__init__(EMULATED / kernel / "vmlinuz", *arguments)
        self._processor, self._ssh_key = processor, ssh_key
        # The kernel has no other driver built in, and finds two disks in any order. So the modules are on the same one.
        self._disk = self._directory / "disk"
        subprocess.run(["cp", "--sparse=always", self._image, self._disk], check=True)
        with open(self._disk, "ab") as disk:
            disk.write((EMULATED / kernel / "modules.tar").read_bytes())

    def _boot_command(self, parameters):
        key = self._ssh_key.with_suffix(".pub").read_text(encoding="utf-8").split()[1]
        parameters |= {
            "console": "ttyS0", "panic": -1, "root": "/dev/nvme0n1", "modules": self._image.stat().st_size, "key": key,
            "net.ifnames": 0, "device": "eth0",
        }
        emulator = EMULATED / "emulator"
        libraries = emulator / "usr/lib/x86_64-linux-gnu"
        return [
            "env", f"LD_LIBRARY_PATH={libraries}:{emulator}/lib/x86_64-linux-gnu", f"QEMU_MODULE_DIR={libraries}/qemu",
            emulator / "usr/bin/qemu-system-x86_64", "-L", emulator / "usr/share/qemu", "-L", emulator / "usr/share/seabios",
            "-accel", "tcg,thread=multi,tb-size=256", "-machine", "q35", "-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio",
            "-cpu", self._processor, "-smp", "2", "-m", MEMORY,
            "-drive", f"file={self._disk},format=raw,if=none,id=disk", "-device", "nvme,serial=disk,drive=disk",
            "-netdev", f"tap,id=net,ifname={self._tap},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=net,mac={self._mac},romfile=",
            "-kernel", self._kernel,
            "-append", " ".join(["rw", *(f"{name}={value}" for name, value in parameters.items())]),
        ]

    def _is_up(self):
        return self.try_run("true", 10)[0] == 0

    def _ssh(self, script, limit_s, stdin=subprocess.DEVNULL):
        options = {
            "ControlMaster": "auto", "ControlPath": self._directory / "ssh", "ControlPersist": "yes", "LogLevel": "ERROR",
            "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "ConnectTimeout": 10,
        }
        command = self.network.command(
            "ssh", "-F", "none", "-i", self._ssh_key, *(f"-o{name}={value}" for name, value in options.items()),
            f"root@{self.address}", script,
        )
        # The first ssh leaves a process that keeps the connection and its output: a file, so that nothing waits for its end.
        output = self._directory / "output"
        with open(output, "wb") as file:
            try:
                status = subprocess.run(
                    command, stdin=stdin, stdout=file, stderr=file, timeout=limit_s * self.slowness, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                status = -1
        return status, output.read_text(errors="replace")

    def try_run(self, script, limit_s=60):
        # Two streams of ssh would mix the lines.
        return self._ssh(f"exec 2>&1\n{script}", limit_s)

    def _install(self, mode, path, source):
        with open(source, "rb") as file:
            status, output = self._ssh(f"install -D -m {mode} /dev/stdin {path}", 60, file)
        assert status == 0, output

    def write(self, path, content):
        source = self._directory / "file"
        source.write_bytes(content)
        self._install(600, path, source)

    def copy(self, source, path):
        self._install(755, path, source)
