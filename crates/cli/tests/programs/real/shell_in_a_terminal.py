"""Drives a shell in a terminal, like an agent or a terminal emulator. The shell has a variable, a function and a
background job, and waits at its prompt. When standard input has a line, the program uses all of them, and interrupts
a foreground command.

usage: shell_in_a_terminal.py < TRIGGER
"""

import os
import pty
import re
import signal
import sys
import time

ENVIRONMENT = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "", "PS2": "", "HISTFILE": ""}


class Shell:
    def __init__(self) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            # This process may have inherited an ignored SIGINT. The shell and its children would then ignore it too.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], ENVIRONMENT)
        self.text = ""
        self.ask("stty -echo")

    def ask(self, command: str) -> str:
        """Returns the output of a command. The end mark is written so that the terminal's echo of the command does not
        contain it."""
        os.write(self.terminal, f"{command}\nprintf '<%s>' end\n".encode())
        while "<end>" not in self.text:
            self.text += os.read(self.terminal, 4096).decode()
        said, self.text = self.text.split("<end>", 1)
        return " ".join(said.split())

    def interrupt(self, command: str) -> str:
        """Interrupts a command when it runs in the foreground, and returns its status. First waits until the command has
        executed its program: before, it is a copy of the shell, which might ignore the signal."""
        os.write(self.terminal, f"{command}\n".encode())
        while name_of(os.tcgetpgrp(self.terminal)) != command.split()[0]:
            time.sleep(0.001)
        os.write(self.terminal, b"\x03")
        return re.sub(r"\^C", "", self.ask("echo $?")).strip()


def name_of(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as name:
        return name.read().strip()


shell = Shell()
shell.ask("cd /usr; number=7; double() { echo $((2 * $1)); }; sleep 1000 &")
print("half", flush=True)
sys.stdin.readline()
answers = [shell.ask("double $((number * 3))"), shell.ask("pwd"), shell.ask("jobs -r | wc -l")]
answers += [shell.ask("test -t 0 && echo terminal"), shell.interrupt("sleep 1000")]
answers += [shell.ask("kill %1; wait %1; echo $?")[-3:]]
print("result", *answers)
print(".", flush=True)
