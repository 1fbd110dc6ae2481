"""Runs `handler(payload)` of a Python file in the parent, in children of farfork, and in children of os.fork().

Arguments: the file, the name of the handler, a file with the payload as JSON, and the time limit of a call in seconds.
A command is one letter on standard input. An answer is a line on standard output: a word and numbers, or `failed WHY`.
A child of farfork finds its payload in a file that its parent does not have. With the payload `warm INDEX SOCKET` it
serves a client.
"""

import collections.abc
import contextlib
import faulthandler
import hashlib
import importlib.util
import inspect
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback

IN_FARFORK_CHILD, IN_LOCAL_FORK = "a call in a child of farfork", "a call in a child of os.fork()"
PAYLOAD = "/run/farfork/payload"
POLL_SECONDS = 0.0002  # a child checks this often whether it is a child
MESSAGE_CHARACTERS_MAX = 500
LAZY_TYPES = (collections.abc.Iterator, collections.abc.AsyncIterator)  # they compute when a caller needs a value
FAILED_CALL = 2**64 - 1  # follows a request instead of its number, if the call failed


class Function:
    """A handler, and how it is called."""

    def __init__(self, path, handler_name, seconds):
        self.path, self.seconds = path, seconds
        with function_stdio(), time_limit(seconds):
            self.handler = load_handler(path, handler_name)

    def call(self, payload):
        """Returns the nanoseconds of a call, and 63 bits of the digest of its result."""
        caller = os.getpid()
        with function_stdio(), time_limit(self.seconds):
            began = time.perf_counter_ns()
            result = self.handler(payload)
            took = time.perf_counter_ns() - began
            if inspect.isawaitable(result) or isinstance(result, LAZY_TYPES):
                raise TypeError(f"it returned a {type(result).__name__}; measure a function that returns a value")
            if os.getpid() != caller:
                os._exit(0)  # the function has forked, and this is the copy
            digest = hashlib.sha256(repr(result).encode(errors="surrogatepass")).digest()
        return took, int.from_bytes(digest[:8], "big") >> 1

    def call_text(self, payload, where, word, started):
        """Returns the answer of a call: `WORD STARTED NANOSECONDS DIGEST`, or `failed WHY`."""
        try:
            return "{} {} {} {}".format(word, started, *self.call(payload))
        except BaseException as error:
            return failure_text(where, error, self.path)


def load_handler(path, name):
    sys.path[0] = os.path.dirname(path)
    module_name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@contextlib.contextmanager
def function_stdio():
    """Gives the function /dev/null as standard input and standard error as standard output."""
    saved = [os.dup(0), os.dup(1)]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the function may have closed or replaced it
            sys.stdout.flush()
        for descriptor, copy in enumerate(saved):
            os.dup2(copy, descriptor)
            os.close(copy)


@contextlib.contextmanager
def time_limit(seconds):
    """Kills the process by SIGALRM if the block takes longer. A function that blocks in C code is killed, too."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def failure_text(where, error, path):
    """Prints the traceback of an error. Returns an answer with the error and its last line in the function's file."""
    traceback.print_exception(type(error), error, error.__traceback__)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    place = f" (line {lines[-1]})" if lines else ""
    message = " ".join(traceback.format_exception_only(type(error), error)[-1].split())[:MESSAGE_CHARACTERS_MAX]
    message = "".join(character if character.isprintable() else "?" for character in message)
    return f"failed {where}: {message}{place}"


def write_answer(text):
    os.write(1, text.encode(errors="backslashreplace") + b"\n")


def read_command():
    """Returns the next byte of standard input; empty at its end. No byte is buffered: children would have it, too."""
    return os.read(0, 1)


def resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def run_in_local_fork(function, payload):
    """Returns the answer of a child of os.fork(). Its start is relative to the call of os.fork()."""
    where = IN_LOCAL_FORK
    reader, writer = os.pipe()
    answer = ""
    called = time.time_ns()
    child = os.fork()
    if child == 0:
        started = time.time_ns()
        os.write(writer, function.call_text(payload, where, "forked", started - called).encode())
        os._exit(0)
    os.close(writer)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if select.select([reader], [], [], 0)[0]:  # else a process that the function left has the pipe open
        answer = os.read(reader, 65536).decode()
    os.close(reader)
    if answer:
        return answer
    if status == -signal.SIGALRM:
        threads = threading.active_count() - 1
        cause = f"the process has {threads} more threads, which a child of os.fork() does not have; " if threads else ""
        return f"failed {where}: it did not return within {function.seconds:g} s; {cause}to allow more time: --timeout"
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return f"failed {where}: it ended the process: {how}"


def serve(function, payload, where, index, path):
    """Connects to a Unix socket, writes the index, and answers each request, a number, with the number and the digest. If a
    call fails, answers with FAILED_CALL, the length of an error text, and the text, and ends.
    """
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(path)
        stream.sendall(struct.pack("<Q", int(index)))
        while request := stream.recv(8, socket.MSG_WAITALL):
            try:
                answer = request + struct.pack("<Q", function.call(payload)[1])
            except BaseException as error:
                text = failure_text(where, error, function.path).encode(errors="backslashreplace")
                return stream.sendall(struct.pack("<QQ", FAILED_CALL, len(text)) + text)
            stream.sendall(answer)


def run_in_child(function, payload, started):
    """Runs a child of farfork: one call with its own payload, or calls for a client."""
    with open(PAYLOAD, encoding="utf-8") as file:
        text = file.read()
    if text.startswith("warm "):
        serve(function, payload, IN_FARFORK_CHILD, *text.split(" ", 2)[1:])
    else:
        write_answer(function.call_text(json.loads(text), IN_FARFORK_CHILD, "ran", started))
    os._exit(0)


def fork_server(function, payload):
    """Forks a child by os.fork() that serves a client. The arguments are the rest of the line on standard input."""
    line = b""
    while not line.endswith(b"\n"):
        line += read_command()
    if os.fork() == 0:
        serve(function, payload, IN_LOCAL_FORK, *line.decode().rstrip("\n").split(" ", 1))
        os._exit(0)


def run_parent(function, payload):
    """Executes commands until standard input ends. A child of farfork runs from the point where its parent was copied."""
    while True:
        readable = select.select([0], [], [], POLL_SECONDS)[0]
        if os.path.exists(PAYLOAD):
            # The time is read after the check: the parent may have been copied between any two instructions.
            run_in_child(function, payload, time.time_ns())
        if readable:
            command = read_command()
            if command == b"l":
                write_answer(run_in_local_fork(function, payload))
            elif command == b"w":
                fork_server(function, payload)
                write_answer("connecting")
            else:
                return


def main(path, handler_name, payload_path, seconds):
    with open(payload_path, encoding="utf-8") as file:
        payload = json.load(file)
    faulthandler.register(signal.SIGALRM, chain=True)
    sys.stdout = sys.stderr  # a thread of the function may print between calls
    where = "loading it"
    try:
        function = Function(path, handler_name, float(seconds))
        where = "the parent's first call"
        first_ns, digest = function.call(payload)
        where = "the parent's second call"
        warm_ns, repeated = function.call(payload)
    except BaseException as error:
        write_answer(failure_text(where, error, path))
        return
    write_answer(f"ready {first_ns} {warm_ns} {resident_kib()} {digest} {repeated}")
    run_parent(function, payload)


if __name__ == "__main__":
    main(*sys.argv[1:])
