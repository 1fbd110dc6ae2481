"""Rich output of workers: what calls display with IPython is shown by the program, among their printed output."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any, Callable

from ._channel import Payload
from ._history import running_shell


class Display(dict[str, Any]):
    """The arguments of one ``DisplayPublisher.publish``: ``data`` has a representation for each MIME type."""


def forward_displays(shell: Any, send: Callable[[Display], None]) -> None:
    """In a worker: sends what IPython's shell displays, and the value at the end of a cell."""
    hooks: Any = importlib.import_module("IPython.core.displayhook")
    publishers: Any = importlib.import_module("IPython.core.displaypub")

    class ForwardingPublisher(publishers.DisplayPublisher):  # type: ignore[misc]
        def publish(self, data: Any, metadata: Any = None, **details: Any) -> None:
            named = {name: details[name] for name in ("transient", "update") if details.get(name)}
            send(Display(data=dict(data), metadata=dict(metadata or {}), **named))

        def clear_output(self, wait: bool = False) -> None:
            pass  # The cell has output of others.

    class ForwardingHook(hooks.DisplayHook):  # type: ignore[misc]
        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            send(Display(data=dict(format_dict), metadata=dict(md_dict or {})))

        def finish_displayhook(self) -> None:
            self._is_active = False

    shell.display_pub = ForwardingPublisher(shell=shell)
    # A cell of the program runs: the hook is set already.
    shell.displayhook = shell.display_trap.hook = sys.displayhook = ForwardingHook(shell=shell)


def show(payload: Payload) -> None:
    """In the program: shows what a worker has sent."""
    try:
        display = payload.load()
        if (shell := running_shell()) is not None:
            shell.display_pub.publish(**display)
        elif "text/plain" in display["data"]:
            print(display["data"]["text/plain"], flush=True)
    except Exception:  # As for printed output: it ends no call.
        traceback.print_exc()
