"""Runs `handler(payload)` of a Python file in the parent, in children of farfork, and in children of os.fork().

Arguments: the file, the name of the handler, and the payload as JSON. A command is one letter on standard input; an
answer is a line with a word and numbers. A child of farfork finds the payload in a file that its parent does not have.
With the payload `warm INDEX SOCKET` it serves a client.
"""

import hashlib
import importlib.util
import json
import os
import select
import socket
import struct
import sys
import time

PAYLOAD = "/run/farfork/payload"
POLL_SECONDS = 0.0002  # a child checks this often whether it is a child


def load_handler(path, name):
    spec = importlib.util.spec_from_file_location("function", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def run(handler, payload):
    """Returns the nanoseconds of a call, and 63 bits of the digest of its result."""
    began = time.perf_counter_ns()
    result = handler(payload)
    took = time.perf_counter_ns() - began
    return took, int.from_bytes(hashlib.sha256(repr(result).encode()).digest()[:8], "big") >> 1


def resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def run_in_local_fork(handler, payload):
    """Returns the nanoseconds from the call of os.fork() to the child's first instruction, then those of run()."""
    reader, writer = os.pipe()
    called = time.time_ns()
    if os.fork() == 0:
        started = time.time_ns()
        took, digest = run(handler, payload)
        os.write(writer, f"{started - called} {took} {digest}".encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 256).decode()
    os.close(reader)
    os.wait()
    return answer


def serve(handler, payload, index, path):
    """Connects to a Unix socket, writes the index, and answers each request, a number, with the number and the digest."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(path)
        stream.sendall(struct.pack("<Q", int(index)))
        while request := stream.recv(8, socket.MSG_WAITALL):
            stream.sendall(request + struct.pack("<Q", run(handler, payload)[1]))


def run_in_child(handler, payload, started):
    """Runs a child of farfork: one call with its own payload, or calls for a client."""
    with open(PAYLOAD) as file:
        text = file.read()
    if text.startswith("warm "):
        serve(handler, payload, *text.split(" ", 2)[1:])
    else:
        print("ran", started, *run(handler, json.loads(text)), flush=True)
    os._exit(0)


def fork_server(handler, payload):
    """Forks a child by os.fork() that serves a client. The arguments are the rest of the line on standard input."""
    line = b""
    while not line.endswith(b"\n"):
        line += sys.stdin.buffer.raw.read(1)
    if os.fork() == 0:
        serve(handler, payload, *line.decode().rstrip("\n").split(" ", 1))
        os._exit(0)


def main(path, handler_name, payload_text):
    handler = load_handler(path, handler_name)
    payload = json.loads(payload_text)
    first_ns, digest = run(handler, payload)
    warm_ns, repeated = run(handler, payload)
    print("ready", first_ns, warm_ns, resident_kib(), digest, repeated, flush=True)
    while True:
        readable = select.select([sys.stdin], [], [], POLL_SECONDS)[0]
        started = time.time_ns()
        if os.path.exists(PAYLOAD):
            run_in_child(handler, payload, started)
        if readable:
            command = sys.stdin.buffer.raw.read(1)
            if command == b"l":
                print("forked", run_in_local_fork(handler, payload), flush=True)
            elif command == b"w":
                fork_server(handler, payload)
                print("connecting", flush=True)
            else:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
