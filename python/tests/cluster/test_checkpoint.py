"""Tests that a checkpoint returns in the parent and in each child, with the right result and state."""

import ctypes
import gc
import hashlib
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import farfork
from farfork import _pages

from . import PATIENCE_S, command, nodes, wait_for_no_seed

events: list[str] = []
os.register_at_fork(
    before=lambda: events.append("before"),
    after_in_parent=lambda: events.append("parent"),
    after_in_child=lambda: events.append("child"),
)

#: Number of interrupts to raise during the next checkpoints.
interrupts_due = 0


def interrupt_if_due() -> None:
    global interrupts_due
    if interrupts_due:
        interrupts_due -= 1
        signal.raise_signal(signal.SIGINT)


os.register_at_fork(before=interrupt_if_due)


def children_of(seed: farfork.Seed, count: int) -> list[Any]:
    """Forks children of a seed onto other nodes, each with its number as payload, and waits for them."""
    with tempfile.NamedTemporaryFile("w") as payloads:
        payloads.write("".join(f"{number}\n" for number in range(count)))
        payloads.flush()
        said = command("fork", str(seed), "--to", ",".join(nodes()), "--payloads", payloads.name, "--detach")
    ids = [child["child"] for child in said["children"]]
    try:
        return list(command("wait", "--results", "--timeout", f"{PATIENCE_S}s", *ids, fails=True)["children"])
    finally:
        command("drop", "--force", str(seed))


def end(child: farfork.Child, result: str) -> None:
    child.write_result(result)
    os._exit(0)


class Checkpoint(unittest.TestCase):
    def results(self, seed: farfork.Seed, count: int = 4) -> list[str]:
        ends = children_of(seed, count)
        self.assertEqual([child["exit_code"] for child in ends], [0] * count, ends)
        return [child["result"] for child in ends]

    def test_an_interrupt_is_raised_after_the_checkpoint_and_leaves_no_seed(self) -> None:
        global interrupts_due
        interrupts_due = 1
        with self.assertRaises(KeyboardInterrupt):
            farfork.checkpoint()
        wait_for_no_seed()
        interrupts_due = 1
        caught: list[int] = []
        handler = signal.signal(signal.SIGINT, lambda number, _frame: caught.append(number))
        try:
            who = farfork.checkpoint()
            if who.is_child:
                os.kill(os.getpid(), signal.SIGINT)
                end(who, str(caught))
            else:
                self.assertEqual(caught, [signal.SIGINT])
                self.assertEqual(self.results(who, 1), [str([int(signal.SIGINT)])])
        finally:
            signal.signal(signal.SIGINT, handler)

    def test_a_checkpoint_returns_in_the_parent_and_in_each_child(self) -> None:
        table = {number: number * number for number in range(10_000)}
        who = farfork.checkpoint()
        if who.is_child:
            end(who, f"{who.index} {who.payload.decode()} {table[int(who.payload) + 100]} {who.seed}")
        else:
            self.assertGreater(who.prepare_s, who.pause_s)
            expected = [f"{number} {number} {(number + 100) ** 2} {who}" for number in range(4)]
            self.assertEqual(self.results(who), expected)

    def test_offered_pages_are_used_and_hold_the_same_in_children(self) -> None:
        for _ in range(2):
            who = farfork.checkpoint()
            held = ctypes.string_at(*_pages.offer_pages())
            digest = hashlib.sha256(held).hexdigest()
            if who.is_child:
                end(who, digest)
            else:
                self.assertNotEqual(held[:8], bytes(8), "the offered page has no code")
                self.assertEqual(self.results(who, 2), [digest] * 2)

    def test_the_cpu_affinity_is_kept_in_parent_and_children(self) -> None:
        allowed = os.sched_getaffinity(0)
        for cpus in (allowed, {min(allowed)}):
            os.sched_setaffinity(0, cpus)
            who = farfork.checkpoint()
            now = os.sched_getaffinity(0)
            if who.is_child:
                end(who, str(now == cpus))
            else:
                os.sched_setaffinity(0, allowed)
                self.assertEqual(now, cpus)
                self.assertEqual(self.results(who, 2), ["True"] * 2)

    def test_a_missing_payload_names_the_options_that_set_it(self) -> None:
        who = farfork.checkpoint()
        if who.is_child:
            try:
                end(who, f"it has {who.payload!r}")
            except farfork.PayloadMissing as error:
                end(who, f"{who.has_payload} {os.path.exists('/run/farfork/payload')} {error}")
        else:
            try:
                (child,) = command("fork", str(who), "--to", nodes()[0], "--detach")["children"]
                waited = command("wait", "--results", "--timeout", f"{PATIENCE_S}s", child["child"])
                result = waited["children"][0]["result"]
                self.assertTrue(result.startswith(f"False False child {child['child']}: "), result)
                self.assertIn(f"farfork fork {who} --payload FILE", result)
            finally:
                command("drop", "--force", str(who))

    def test_a_large_result_is_complete(self) -> None:
        who = farfork.checkpoint()
        if who.is_child:
            for _ in range(3):
                who.write_result(who.payload * 1_000_000)
            end(who, "end")
        else:
            results = self.results(who, 2)
            self.assertEqual([len(result) for result in results], [3_000_003] * 2)
            self.assertEqual([set(result[:-3]) for result in results], [{"0"}, {"1"}])

    def test_standard_output_is_not_a_result(self) -> None:
        sys.stdout.flush()
        who = farfork.checkpoint()
        if who.is_child:
            os.write(1, b"written")
            os._exit(0)
        else:
            (ended,) = children_of(who, 1)
            self.assertEqual((ended["stdout"], ended.get("result")), ("written", None))

    def test_a_seed_has_the_name_and_lifetime_of_its_options(self) -> None:
        who = farfork.checkpoint(name=f"named-{os.getpid()}", ttl=600)
        if who.is_child:
            end(who, "")
        else:
            known = command("inspect", f"named-{os.getpid()}")
            self.assertEqual(known["seed"], str(who))
            self.assertGreater(known["expires_unix_ms"], 0)
            who.drop()

    def test_hooks_run_in_parent_and_children(self) -> None:
        events.clear()
        who = farfork.checkpoint()
        if who.is_child:
            end(who, " ".join(events))
        else:
            self.assertEqual(events, ["before", "parent"])
            self.assertEqual(self.results(who, 2), ["before child"] * 2)

    def test_threads_continue_in_children(self) -> None:
        questions: "queue.Queue[int]" = queue.Queue()
        answers: "queue.Queue[int]" = queue.Queue()

        def square() -> None:
            while True:
                answers.put(questions.get() ** 2)

        thread = threading.Thread(target=square, daemon=True)
        thread.start()
        with ThreadPoolExecutor(2) as pool:
            self.assertEqual(list(pool.map(abs, [-1, -2])), [1, 2])
            who = farfork.checkpoint()
            if who.is_child:
                number = int(who.payload)
                questions.put(number + 5)
                pooled = pool.submit(lambda: number + 1).result(10)
                end(who, f"{thread.is_alive()} {answers.get(timeout=PATIENCE_S)} {pooled}")
            else:
                expected = [f"True {(number + 5) ** 2} {number + 1}" for number in range(4)]
                self.assertEqual(self.results(who), expected)
                questions.put(3)
                self.assertEqual(answers.get(timeout=PATIENCE_S), 9)

    def test_logging_works_in_children_while_a_thread_logs(self) -> None:
        logger, stop = logging.getLogger("busy"), threading.Event()
        handler = logging.FileHandler(os.devnull)
        logger.addHandler(handler)

        def log() -> None:
            while not stop.is_set():
                logger.warning("busy")

        thread = threading.Thread(target=log)
        thread.start()
        who = farfork.checkpoint()
        if who.is_child:
            for _ in range(1000):
                logger.warning("busy too")
            end(who, "logged")
        else:
            try:
                self.assertEqual(self.results(who), ["logged"] * 4)
            finally:
                stop.set()
                thread.join()
                handler.close()

    def test_objects_of_the_parent_are_frozen_in_children(self) -> None:
        before = gc.get_freeze_count()
        who = farfork.checkpoint()
        if who.is_child:
            end(who, str(gc.get_freeze_count() > 1000 and gc.isenabled()))
        else:
            self.assertEqual(gc.get_freeze_count(), 0 if before == 0 else gc.get_freeze_count())
            self.assertEqual(self.results(who, 1), ["True"])

    def test_a_child_cannot_be_forked_further(self) -> None:
        who = farfork.checkpoint()
        if who.is_child:
            try:
                farfork.checkpoint()
            except farfork.DaemonNotFound as error:
                end(who, str(error))
            os._exit(1)
        else:
            self.assertIn("cannot be forked further", self.results(who, 1)[0])

    def test_a_refusal_names_the_cause(self) -> None:
        hindrance = os.pidfd_open(os.getppid())
        try:
            events.clear()
            with self.assertRaisesRegex(farfork.CheckpointError, f"fd {hindrance}\\b.*pidfd of another process"):
                farfork.checkpoint()
            self.assertEqual(events, ["before", "parent"])
        finally:
            os.close(hindrance)
        self.test_a_checkpoint_returns_in_the_parent_and_in_each_child()

    def test_a_missing_daemon_error_names_the_socket(self) -> None:
        program = "import farfork\ntry: farfork.checkpoint()\nexcept farfork.DaemonNotFound as error: print(error)"
        environment = {**os.environ, "FARFORK_PROGRAM_SOCKET": "/nonexistent/program.sock"}
        said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        self.assertIn("/nonexistent/program.sock", said.stdout, said.stderr)

    def test_threads_may_call_checkpoint_at_the_same_time(self) -> None:
        seeds: "queue.Queue[farfork.Seed | farfork.Child]" = queue.Queue()

        def ask() -> None:
            for _ in range(5):
                who = farfork.checkpoint()
                if who.is_child:
                    end(who, threading.current_thread().name)
                seeds.put(who)

        threads = [threading.Thread(target=ask, name=f"asker {number}") for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        made = [seeds.get() for _ in range(15)]
        last = made[-1]
        assert isinstance(last, farfork.Seed)
        self.assertRegex(self.results(last, 1)[0], "asker [0-2]")
        for seed in made[:-1]:
            assert isinstance(seed, farfork.Seed)
            seed.drop()
