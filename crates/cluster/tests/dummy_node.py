#!/usr/bin/env python3
"""Replaces `farfork node` in tests of local clusters: takes the same arguments, listens at its socket and its address,
starts a process that outlives it (as a container would), and ends on SIGTERM."""
import argparse
import os
import signal
import socket
import subprocess
import sys

options = argparse.ArgumentParser()
options.add_argument("command", choices=["node"])
options.add_argument("--name", required=True)
options.add_argument("--run-dir", required=True)
options.add_argument("--listen", required=True)
options.add_argument("--join")
options.add_argument("--trust", required=True)
options.add_argument("--volumes", required=True)
options.add_argument("--catalog", required=True)
options.add_argument("--fail", action="store_true")
options = options.parse_args()
if options.fail:
    sys.exit("there is no memory left on Tuesdays")

host, port = options.listen.split(":")
network = socket.create_server((host, int(port)))
subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
path = os.path.join(options.run_dir, "node.sock")
if os.path.exists(path):
    os.remove(path)
local = socket.socket(socket.AF_UNIX)
local.bind(path)
local.listen()
while True:
    network.accept()[0].close()
