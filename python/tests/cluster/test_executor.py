"""Tests calls that each have their own child: values, order, exceptions, ends, limits. `test_workers` tests workers."""

import errno
import os
import pickle
import signal
import socket
import threading
import time
import unittest
from collections import Counter
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import as_completed, wait
from functools import partial
from typing import Any

import farfork

from .. import memory_limit
from . import PATIENCE_S, Forked, command, nodes

TABLE = {number: f"value {number}" for number in range(200_000)}


def square(number: int) -> int:
    if number == 77:
        raise KeyError("seventy-seven")
    if number == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def take_a_while(_: int) -> tuple[float, float]:
    begin = time.time()
    time.sleep(0.2)
    return begin, time.time()


def executor(**options: Any) -> farfork.Executor:
    return farfork.Executor(nodes(), reuse_workers=False, **options)


def fork_and_return() -> str:
    if (pid := os.fork()) == 0:
        return "of the copy"
    os.waitpid(pid, 0)
    return "of the call"


def raise_own() -> None:
    class Own(Exception):
        pass

    globals()["Own"] = Own
    Own.__qualname__ = "Own"
    raise Own("only here")


class Executor(unittest.TestCase):
    def test_a_result_without_memory_fails_only_its_call(self) -> None:
        with executor() as children:
            large, other = children.submit(bytes, 200 << 20), children.submit(take_a_while, 0)
            with memory_limit(100 << 20):
                with self.assertRaises(farfork.OutOfMemory) as raised:
                    large.result(PATIENCE_S)
            # The node of a call is known when it has started.
            self.assertRegex(str(raised.exception), f"child {large.node}.c.*not enough memory")
            self.assertLess(*other.result(PATIENCE_S))

    def test_a_process_that_a_call_forks_gives_no_result(self) -> None:
        with executor() as children:
            self.assertEqual(children.submit(fork_and_return).result(PATIENCE_S), "of the call")

    def test_an_exception_of_a_class_that_only_the_child_has_keeps_its_text(self) -> None:
        for reuse_workers in (True, False):
            with farfork.Executor(nodes(), max_workers=1, reuse_workers=reuse_workers) as children:
                error = children.submit(raise_own).exception(PATIENCE_S)
            self.assertIsInstance(error, RuntimeError)
            assert error is not None
            self.assertIn("Own: only here", str(error))
            self.assertIn("in raise_own", str(error.__cause__))

    def test_200_children_run_on_two_nodes(self) -> None:
        with executor() as children:
            outcomes = list(children.map(square, range(200), return_exceptions=True))
        raised, died = outcomes[77], outcomes[99]
        self.assertIsInstance(raised, KeyError)
        assert isinstance(raised, KeyError) and isinstance(died, farfork.ChildDied)
        self.assertEqual(raised.args, ("seventy-seven",))
        self.assertIn("in square", str(raised.__cause__))
        self.assertEqual(died.signal, signal.SIGKILL)
        self.assertIn(str(died.child).partition(".")[0], nodes())
        others = {number: outcome for number, outcome in enumerate(outcomes) if number not in (77, 99)}
        self.assertEqual(others, {number: number * number for number in others})

    def test_children_are_spread_over_the_nodes(self) -> None:
        with executor() as children:
            batch = children._submit_calls([partial(square, number) for number in range(20)])
            self.assertEqual([future.result(PATIENCE_S) for future in batch], [number * number for number in range(20)])
        self.assertEqual(Counter(future.node for future in batch), dict.fromkeys(nodes(), 10))

    def test_memory_is_fetched_as_the_strategy_specifies(self) -> None:
        def counts_of(strategy: str) -> dict[str, int]:
            with executor(strategy=strategy) as children:
                future = children.submit(time.sleep, 60)
                # The future gets the child's id when the child runs.
                while future.child is None:
                    time.sleep(0.01)
                counts: dict[str, int] = command("inspect", future.child)["pager"]
                future.cancel()
            return counts

        alone = counts_of("cow,first")
        self.assertEqual(alone["pages_fetched"], alone["round_trips"])
        self.assertEqual(counts_of("eager")["faults_missing"], 0)
        with executor(strategy="cow,eager") as children:
            with self.assertRaisesRegex(farfork.ChildNotStarted, "exclude each other"):
                children.submit(square, 4).result(PATIENCE_S)

    def test_the_memory_limit_of_a_child_is_enforced(self) -> None:
        def take(size: int) -> int:
            return len(os.urandom(size))

        with executor(memory=256 << 20, cpus=1.5) as children:
            small, large = children.submit(take, 1 << 20), children.submit(take, 512 << 20)
            self.assertEqual(small.result(PATIENCE_S), 1 << 20)
            with self.assertRaisesRegex(farfork.ChildDied, "more than its 256.0 MiB of memory") as raised:
                large.result(PATIENCE_S)
            self.assertEqual(raised.exception.limit, "memory")

    def test_the_process_limit_of_a_child_is_enforced(self) -> None:
        def start(count: int) -> str:
            threads = [threading.Thread(target=time.sleep, args=(600,), daemon=True) for _ in range(count)]
            try:
                for thread in threads:
                    thread.start()
            except RuntimeError as error:
                return str(error)
            return "all"

        with executor(processes=40) as children:
            self.assertEqual(children.submit(start, 5).result(PATIENCE_S), "all")
            self.assertIn("can't start new thread", children.submit(start, 50).result(PATIENCE_S))

    def test_children_of_a_call_may_share_a_network(self) -> None:
        def networks(net: str) -> int:
            with executor(net=net) as children:
                batch = children._submit_calls([partial(time.sleep, 600) for _ in range(4)])
                while not all(future.running() or future.done() for future in batch):
                    time.sleep(0.01)
                own = {future.child for future in batch}
                running = [child for child in command("ps", "--running")["children"] if child["child"] in own]
                self.assertEqual([child["network"] for child in running], [net] * 4)
                found = {os.readlink(f"/proc/{child['pid']}/ns/net") for child in running}
                for future in batch:
                    future.cancel()
                return len(found)

        self.assertEqual([networks(net) for net in ("private", "shared", "host")], [4, 2, 2])
        for timeout in (0, -1):
            with self.assertRaisesRegex(ValueError, "timeout"):
                farfork.Executor(timeout=timeout)
        with self.assertRaisesRegex(ValueError, "private, shared, host"):
            executor(net="public")

    def test_egress_permits_connections_of_children(self) -> None:
        [node, *_] = command("nodes")["nodes"]
        ip, port = node["address"].rsplit(":", 1)

        def call() -> str:
            try:
                with socket.create_connection((ip, int(port)), timeout=PATIENCE_S) as connection:
                    connection.settimeout(1)
                    # A node that accepts the connection waits until the client sends.
                    connection.recv(1)
                    return "closed"
            except TimeoutError:
                return "open"
            except OSError as error:
                return errno.errorcode[error.errno or 0]

        found = []
        for egress in ((), ["any"], [f"192.0.2.0/24,{ip}:{port}"], "192.0.2.0/24"):
            with executor(egress=egress, untrusted=True) as children:
                found.append(children.submit(call).result(PATIENCE_S))
        self.assertEqual(found, ["ENETUNREACH", "open", "open", "ECONNRESET"])
        with executor(egress=["example.org"]) as children, self.assertRaisesRegex(farfork.ChildNotStarted, "example.org"):
            children.submit(call).result(PATIENCE_S)

    def test_a_child_may_be_untrusted(self) -> None:
        def rights() -> dict[str, str]:
            with open("/proc/self/status") as status:
                fields = (line.split(":", 1) for line in status)
                return {name: value.strip() for name, value in fields if name in ("CapEff", "NoNewPrivs", "Seccomp")}

        with executor(untrusted=True) as children:
            found = list(children.map(lambda number: (square(number), rights()), range(3)))
        nothing = {"CapEff": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
        self.assertEqual(found, [(square(number), nothing) for number in range(3)])

    def test_an_untrusted_child_may_have_a_user_namespace(self) -> None:
        def users() -> tuple[int, int, list[str]]:
            with open("/proc/self/uid_map") as map_:
                return os.getuid(), os.stat(__file__).st_uid, map_.read().split()

        with executor(untrusted=True, user_namespace=True) as children:
            found = [children.submit(users).result() for _ in range(2)]
        for user, owner, numbers in found:
            self.assertEqual((user, owner), (os.getuid(), os.stat(__file__).st_uid))
            self.assertEqual((numbers[0], numbers[2]), ("0", "65536"))
            self.assertGreaterEqual(int(numbers[1]), 1 << 30)
        with self.assertRaisesRegex(ValueError, "untrusted"):
            executor(user_namespace=True)

    def test_each_call_of_a_chunk_has_its_own_outcome(self) -> None:
        with executor() as children:
            raised = list(children.map(square, range(75, 81), chunksize=3, return_exceptions=True))
            died = list(children.map(square, range(97, 103), chunksize=3, return_exceptions=True))
        self.assertEqual(raised[:2] + raised[3:], [number * number for number in (75, 76, 78, 79, 80)])
        self.assertIsInstance(raised[2], KeyError)
        self.assertEqual([type(outcome) for outcome in died[:3]], [farfork.ChildDied] * 3)
        self.assertEqual(died[3:], [number * number for number in (100, 101, 102)])

    def test_map_keeps_the_order_and_raises_in_turn(self) -> None:
        def slow(number: int) -> int:
            time.sleep(0.2 - number / 100)
            return square(number)

        with executor() as children:
            self.assertEqual(list(children.map(slow, range(12))), [number * number for number in range(12)])
            results = children.map(square, [1, 77, 3])
            self.assertEqual(next(results), 1)
            with self.assertRaises(KeyError):
                next(results)
            self.assertEqual(list(children.map(pow, [2, 3], [5, 2])), [32, 9])
            self.assertEqual(list(children.map(square, [])), [])

    def test_calls_use_objects_in_memory_without_pickling(self) -> None:
        local = {"closure": threading.Lock()}  # It cannot be pickled.

        def look_up(part: int) -> tuple[int, bool]:
            count = sum(len(TABLE[key]) for key in range(part, len(TABLE), 4))
            return count, local["closure"].acquire(blocking=False)

        with executor() as children:
            counts = list(children.map(look_up, range(4)))
        self.assertEqual(sum(count for count, _ in counts), sum(map(len, TABLE.values())))
        self.assertTrue(all(taken for _, taken in counts))

    def test_calls_of_a_chunk_share_a_child(self) -> None:
        with executor() as children:
            pids = list(children.map(lambda _: (os.getpid(), time.monotonic_ns()), range(10), chunksize=4))
            self.assertEqual(list(children.map(square, range(10), chunksize=4)), [n * n for n in range(10)])
        self.assertEqual(len(pids), 10)

    def test_the_number_of_running_children_is_bounded(self) -> None:
        with executor(max_workers=2) as children:
            spans = list(children.map(take_a_while, range(6)))
        edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
        living = most = 0
        for _, change in edges:
            living += change
            most = max(most, living)
        self.assertLessEqual(most, 2)

    def test_a_cancelled_call_has_its_child_killed(self) -> None:
        with executor() as children:
            future = children.submit(time.sleep, 600)
            while not future.running():
                time.sleep(0.01)
            begin = time.monotonic()
            self.assertTrue(future.cancel())
            self.assertIn(future, wait([future], timeout=PATIENCE_S).done)
        self.assertLess(time.monotonic() - begin, 300, "the future waited for the end of its child")
        self.assertNotIn(future.child, [child["child"] for child in command("ps", "--running")["children"]])

    def test_a_child_that_takes_too_long_is_killed(self) -> None:
        with executor(timeout=3) as children, self.assertRaises(farfork.ChildTimeout):
            children.submit(time.sleep, 600).result(PATIENCE_S)
        with executor(timeout=PATIENCE_S) as children:
            self.assertIsNone(children.submit(time.sleep, 0).result(PATIENCE_S))

    def test_map_ends_at_its_timeout(self) -> None:
        # On a busy machine, even the first child may not end within a short limit.
        for limit in (2, 8, 32, 128):
            begin = time.monotonic()
            done = 0
            with executor() as children, self.assertRaises(FutureTimeoutError):
                for _ in children.map(time.sleep, [0, 600, 600], timeout=limit):
                    done += 1
            took = time.monotonic() - begin
            self.assertTrue(limit <= took < 600, f"{took} s of {limit}")
            if done == 1:
                return
        self.fail("no child was done in time")

    def test_each_end_without_a_result_is_an_error(self) -> None:
        with executor() as children:
            for call, text in [
                (lambda: os._exit(3), "exit status 3"),
                (lambda: os._exit(0), "exit status 0"),
                (lambda: os.abort(), "SIGABRT"),
            ]:
                with self.assertRaisesRegex(farfork.ChildDied, text):
                    children.submit(call).result(PATIENCE_S)
            with self.assertRaises(SystemExit):
                children.submit(exit, 5).result(PATIENCE_S)
            with self.assertRaises((pickle.PicklingError, AttributeError, TypeError)):
                children.submit(lambda: lambda: None).result(PATIENCE_S)

    def test_an_unknown_node_is_an_error_of_each_child(self) -> None:
        with farfork.Executor([nodes()[0], "nowhere"], reuse_workers=False) as children:
            with self.assertRaisesRegex(farfork.ChildNotStarted, "nowhere"):
                list(children.map(square, range(3)))

    def test_the_cluster_chooses_nodes_by_default(self) -> None:
        with farfork.Executor(reuse_workers=False) as children:
            futures = [children.submit(square, number) for number in range(3)]
            self.assertEqual(sorted(future.result() for future in as_completed(futures, PATIENCE_S)), [0, 1, 4])
            self.assertTrue(all(future.node for future in futures))

    def test_a_large_result_is_complete(self) -> None:
        with executor() as children:
            results = list(children.map(lambda seed: bytes([seed]) * 20_000_000, range(2)))
        self.assertEqual([(len(result), set(result)) for result in results], [(20_000_000, {0}), (20_000_000, {1})])

    def test_threads_may_submit_at_the_same_time(self) -> None:
        with executor() as children:
            results: list[int] = []

            def submit(first: int) -> None:
                futures = [children.submit(square, first + number) for number in range(5)]
                results.extend(future.result(PATIENCE_S) for future in futures)

            threads = [threading.Thread(target=submit, args=(first,)) for first in (0, 10, 20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        expected = [(first + number) ** 2 for first in (0, 10, 20) for number in range(5)]
        self.assertEqual(sorted(results), sorted(expected))

    def test_callbacks_may_submit(self) -> None:
        with executor() as children:
            done = threading.Event()
            second: list[Any] = []

            def call_again(future: Any) -> None:
                second.append(children.submit(square, future.result()))
                done.set()

            children.submit(square, 3).add_done_callback(call_again)
            self.assertTrue(done.wait(PATIENCE_S))
            self.assertEqual(second[0].result(PATIENCE_S), 81)

    def test_a_forked_process_has_its_own_calls(self) -> None:
        with executor() as children:
            waiting = children.submit(take_a_while, 0)
            forked = Forked(lambda: str(children.submit(os.getpid).result(PATIENCE_S)))
            future = children.submit(os.getpid)
            self.assertEqual(forked.text(), str(forked.pid))
            self.assertEqual(future.result(PATIENCE_S), os.getpid())
            waiting.result(PATIENCE_S)
            self.assertEqual(children.submit(square, 3).result(PATIENCE_S), 9)

    def test_an_ended_executor_accepts_no_call_and_leaves_nothing(self) -> None:
        with executor() as children:
            self.assertEqual(list(children.map(square, range(4))), [0, 1, 4, 9])
            ids = [future.child for future in [children.submit(square, 2)] if future.result(PATIENCE_S)]
        with self.assertRaises(RuntimeError):
            children.submit(square, 1)
        deadline = time.monotonic() + PATIENCE_S
        mine: list[Any] = [None]
        while mine and time.monotonic() < deadline:
            seeds = [seed for seed in command("seeds")["seeds"] if seed["parent_pid"] == os.getpid()]
            mine = seeds + [child for child in command("ps")["children"] if child["child"] in ids]
        self.assertEqual(mine, [])
