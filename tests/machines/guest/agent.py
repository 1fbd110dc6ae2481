"""Runs the commands that the host writes to /control: `N.command` has a time limit in seconds and a script of bash(1).

The answers are `N.output` and then `N.status`, which has the exit status, or -1 after the time limit.
"""

import os
import subprocess
import threading
import time

CONTROL = "/control"
POLL_INTERVAL_S = 0.02


def run(number):
    with open(f"{CONTROL}/{number}.command", encoding="utf-8") as file:
        limit, script = file.read().split("\n", 1)
    output = f"/tmp/.{number}.output"
    with open(output, "wb") as file:
        try:
            ended = subprocess.run(
                ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=float(limit)
            )
            status = ended.returncode
        except subprocess.TimeoutExpired:
            status = -1
    with open(output, "rb") as file, open(f"{CONTROL}/{number}.output", "wb") as answer:
        answer.write(file.read())
    os.remove(output)
    with open(f"{CONTROL}/{number}.status.new", "w", encoding="utf-8") as file:
        file.write(str(status))
    os.rename(f"{CONTROL}/{number}.status.new", f"{CONTROL}/{number}.status")


def main():
    known = set()
    while True:
        for name in os.listdir(CONTROL):
            number, _, kind = name.partition(".")
            if kind == "command" and number not in known:
                known.add(number)
                threading.Thread(target=run, args=(number,), daemon=True).start()
        time.sleep(POLL_INTERVAL_S)


main()
