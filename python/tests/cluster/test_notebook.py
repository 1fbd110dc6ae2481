"""Tests notebooks in a Jupyter kernel: calls, interrupts and branches. Needs ``ipykernel``, ``nbclient``, ``nbformat``."""

import importlib
import os
import re
import signal
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import farfork

from . import PATIENCE_S, command, nodes

nbformat: Any = importlib.import_module("nbformat")
nbclient: Any = importlib.import_module("nbclient")
KernelManager: Any = importlib.import_module("jupyter_client.manager").KernelManager

EXAMPLE = Path(__file__).parents[2] / "examples" / "branches.ipynb"

#: Part of the command line of kernels and their children.
KERNEL = "ipykernel_launcher"


def setUpModule() -> None:
    """Makes kernels keep their files in a temporary directory, not in the user's."""
    directory = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(directory.cleanup)
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[variable] = directory.name


class InterruptingClient(nbclient.NotebookClient):  # type: ignore[misc]
    """Interrupts cells with the tag `interrupt` as soon as they have printed something."""

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        output = super().process_message(msg, cell, cell_index)
        if msg["msg_type"] == "stream" and "interrupt" in cell.metadata.get("tags", []):
            cell.metadata.tags.remove("interrupt")
            os.kill(self.km.provisioner.pid, signal.SIGINT)
        return output


def run_cells(notebook: Any) -> list[Any]:
    """Runs a notebook. Returns its code cells."""
    client = InterruptingClient(
        notebook,
        timeout=PATIENCE_S,
        startup_timeout=PATIENCE_S,
        kernel_name="python3",
        kernel_manager_class=KernelManager,
        # Keeps the history in a file, as kernels do by default. nbclient would keep it in memory.
        ipython_hist_file="",
    )
    client.execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def new_notebook(*sources: str, raises: tuple[int, ...] = (), interrupted: tuple[int, ...] = ()) -> Any:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for tag, indices in (("raises-exception", raises), ("interrupt", interrupted)):
        for index in indices:
            cells[index].metadata.setdefault("tags", []).append(tag)
    return nbformat.v4.new_notebook(cells=cells)


def printed(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def values(cell: Any) -> list[str]:
    return [output.data["text/plain"] for output in cell.outputs if "data" in output]


def error(cell: Any) -> Any:
    (raised,) = [output for output in cell.outputs if output.output_type == "error"]
    return raised


class Notebook(unittest.TestCase):
    def require_nothing_left(self) -> None:
        """Checks that no seed and no running child of a kernel is left."""
        deadline = time.monotonic() + PATIENCE_S
        while left := seeds_and_children():
            self.assertLess(time.monotonic(), deadline, left)
            time.sleep(0.1)

    def test_the_example_runs_with_its_interrupts(self) -> None:
        notebook = nbformat.read(EXAMPLE, as_version=4)
        for cell in notebook.cells:
            cell.source = cell.source.replace("n3", "NODE2").replace("n2", nodes()[0]).replace("NODE2", nodes()[1])
        cells = run_cells(notebook)
        _, calls, _, interrupted, _, in_branch, compared, failed, interrupted_branch, kept, _ = cells
        self.assertEqual(sorted(re.findall(r"\] looking up (\d+)", printed(calls))), ["300", "400"])
        self.assertEqual(values(calls), ["[90000, 160000]"])
        self.assertIn("] asleep", printed(interrupted))
        self.assertEqual(error(interrupted).ename, "KeyboardInterrupt")
        self.assertEqual((printed(in_branch), values(in_branch)), ("in the branch: 10\n", ["90"]))
        self.assertEqual(values(compared), [f"(1, 10, {nodes()[0]!r})"])
        self.assertEqual(error(failed).ename, "ZeroDivisionError")
        self.assertIn("1 / 0", "".join(error(failed).traceback))
        self.assertEqual(error(interrupted_branch).ename, "KeyboardInterrupt")
        self.assertEqual(values(kept), ["10"])
        self.require_nothing_left()

    def test_a_seed_can_be_forked_after_later_cells(self) -> None:
        cells = run_cells(
            new_notebook(
                "import farfork, os, time\n"
                f"executor = farfork.Executor({nodes()!r}, max_workers=2)\n"
                "executor.submit(abs, -1).result()",
                "later = 2",
                # One worker exists. A second worker is forked from the seed of the first cell.
                "futures = [executor.submit(time.sleep, 600), executor.submit(time.sleep, 600)]\n"
                f"end = time.monotonic() + {PATIENCE_S // 2}\n"
                "while not all(future.running() for future in futures) and time.monotonic() < end:\n    time.sleep(0.1)\n"
                "executor.cancel_all()\nlen({future.child for future in futures} - {None})",
                "executor.shutdown()",
            )
        )
        self.assertEqual((values(cells[0]), values(cells[2])), (["1"], ["2"]))

    def test_output_is_in_the_cell_of_the_call(self) -> None:
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel()
        try:
            client = manager.blocking_client()
            client.start_channels()
            client.wait_for_ready(timeout=PATIENCE_S)
            first = client.execute(
                f"import farfork, time\nexecutor = farfork.Executor({nodes()[:1]!r}, max_workers=1, output='plain')\n"
                "def speak():\n    time.sleep(2)\n    print('spoken')\n"
                "call = executor.submit(speak)"
            )
            last = client.execute("call.result()\nexecutor.shutdown()")
            messages: list[Any] = []
            while not any(is_reply_to(last, message) and is_idle(message) for message in messages):
                messages.append(client.get_iopub_msg(timeout=PATIENCE_S))
            client.stop_channels()
        finally:
            manager.shutdown_kernel(now=True)
        spoken = [message for message in messages if message["msg_type"] == "stream"]
        self.assertEqual([message["content"]["text"] for message in spoken], ["spoken\n"])
        self.assertTrue(is_reply_to(first, spoken[0]), "the output is in another cell")

    def test_displays_and_logs_of_calls_are_shown_in_order(self) -> None:
        cells = run_cells(
            new_notebook(
                f"import farfork\nexecutor = farfork.Executor({nodes()[:1]!r}, max_workers=1, output='plain')",
                "from IPython.display import HTML, display\n"
                "def show():\n    print('before')\n    display(HTML('<b>shown</b>'))\n    print('after')\n"
                "executor.submit(show).result()",
                "import logging, sys\nlogging.getLogger().addHandler(logging.StreamHandler(sys.stderr))\n"
                "executor.submit(lambda: logging.warning('logged')).result()",
                "executor.submit(lambda: input()).result()",
                "executor.shutdown()",
                raises=(3,),
            )
        )
        shown = [output.get("text") or output.data["text/html"] for output in cells[1].outputs]
        self.assertEqual(shown, ["before\n", "<b>shown</b>", "after\n"])
        self.assertIn("logged", printed(cells[2]))
        self.assertEqual(error(cells[3]).ename, "EOFError")

    def test_a_branch_has_the_state_of_the_shell_and_reports_its_end(self) -> None:
        cells = run_cells(
            new_notebook(
                "import farfork, os\n40 + 2",
                f"branch = farfork.branch({nodes()[0]!r})",
                "branch.run('import asyncio\\nawait asyncio.sleep(0)\\nOut[1], In[-1][:14]')",
                "branch.run('os._exit(3)')",
                "branch.run('1')",
                raises=(3, 4),
            )
        )
        self.assertEqual(values(cells[2]), ["(42, 'import asyncio')"])
        self.assertIn("exit status 3", error(cells[3]).evalue)
        self.assertEqual(error(cells[4]).ename, "BranchClosed")

    def test_calls_cannot_read_input_and_may_run_event_loops(self) -> None:
        cells = run_cells(
            new_notebook(
                "import asyncio, farfork, getpass\n"
                "async def seven():\n    await asyncio.sleep(0)\n    return 7\n"
                "def run_loop():\n    return asyncio.run(seven())\n"
                "from getpass import getpass as imported\n"
                "asked = (input, imported, lambda: input(), lambda: getpass.getpass())\n"
                "def ask():\n    for function in asked:\n        try:\n            function()\n"
                "        except EOFError:\n            continue\n        return\n    raise EOFError\n"
                "results = []",
                *(
                    f"with farfork.Executor({nodes()[:1]!r}, max_workers=2, reuse_workers={reuse}) as executor:\n"
                    "    results.append(executor.submit(run_loop).result())\n"
                    "    results.append(type(executor.submit(ask).exception()).__name__)"
                    for reuse in (True, False)
                ),
                "results",
            )
        )
        self.assertEqual(values(cells[3]), ["[7, 'EOFError', 7, 'EOFError']"])

    def test_errors_outside_the_cell_are_shown(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write("print('begins')\nmissing_name\n")
            script.flush()
            show = f"get_ipython().run_line_magic('run', {script.name!r})"
            cells = run_cells(
                new_notebook(
                    f"import farfork\nbranch = farfork.branch({nodes()[0]!r})",
                    f"branch.run('%run {script.name}')",
                    f"with farfork.Executor({nodes()[:1]!r}, output='plain') as executor:\n"
                    f"    executor.submit(lambda: {show}).result()",
                )
            )
        for cell in cells[1:]:
            self.assertIn("begins", printed(cell))
            self.assertIn("missing_name", printed(cell))

    def test_a_branch_continues_the_shell(self) -> None:
        cells = run_cells(
            new_notebook(
                "import farfork\n40 + 2",
                f"%load_ext farfork\n%branch trial {nodes()[0]}",
                "%%branch trial\n_ + 1",
                "%%branch trial\n_ + 1\n",
                "%%branch trial\n%history -l 2\nlen?",
                "%%branch trial\nclass Own(Exception):\n    pass\nraise Own('of the branch')",
                "trial.value('Own()')",
                f"first = trial\n%branch trial {nodes()[0]}\nfirst",
                "%branch print",
                raises=(5, 6, 8),
            )
        )
        self.assertEqual((values(cells[2]), values(cells[3])), (["43"], ["44"]))
        self.assertNotIn("corrupt", printed(cells[4]))
        self.assertIn("number of items", printed(cells[4]))
        self.assertEqual(error(cells[5]).evalue, "__main__.Own: of the branch")
        self.assertIn("raise Own", "".join(error(cells[5]).traceback))
        self.assertEqual((error(cells[6]).ename, error(cells[8]).ename), ("TypeError", "ValueError"))
        self.assertIn("closed", values(cells[7])[0])

    def test_the_exception_of_an_interrupted_branch_is_raised(self) -> None:
        code = "import time\nprint('asleep', flush=True)\ntry:\n    time.sleep(600)\nfinally:\n    1 / 0\n"
        cells = run_cells(
            new_notebook(
                f"import farfork\nbranch = farfork.branch({nodes()[0]!r})",
                f"branch.run({code!r})",
                "branch.value('6 * 7')",
                raises=(1,),
                interrupted=(1,),
            )
        )
        self.assertEqual(error(cells[1]).ename, "ZeroDivisionError")
        self.assertEqual(values(cells[2]), ["42"])


class BranchOfProgram(unittest.TestCase):
    def test_cells_of_a_branch_run_in_main_and_raise_in_the_caller(self) -> None:
        with farfork.branch(nodes()[0]) as branch:
            self.assertEqual(branch.node, nodes()[0])
            branch.run("first = 6\nsecond = 7")
            self.assertEqual(branch.value("first * second"), 42)
            with self.assertRaisesRegex(ZeroDivisionError, "division") as raised:
                branch.run("first / 0")
            self.assertIn("first / 0", str(raised.exception.__cause__))
            command("kill", "--signal", "KILL", branch.child)
            with self.assertRaises((farfork.ChildDied, farfork.BranchClosed)):
                branch.value("first")
        with self.assertRaises(farfork.BranchClosed):
            branch.run("first")


def is_reply_to(request: str, message: Any) -> bool:
    return bool(message["parent_header"].get("msg_id") == request)


def is_idle(message: Any) -> bool:
    return bool(message["content"].get("execution_state") == "idle")


def seeds_and_children() -> list[str]:
    """Seeds and children of kernels. Other programs may use the cluster too."""
    listed = command("seeds")["seeds"] + command("ps", "--running")["children"]
    return [str(one.get("child") or one["seed"]) for one in listed if KERNEL in one["command"]]
