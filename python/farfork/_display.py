"""Rich output of workers: the program shows what calls display with IPython, in order with their printed output."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any, Callable

from ._channel import Payload
from ._history import running_shell


#: The MIME type of a widget.
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Display(dict[str, Any]):
    """The arguments of one ``DisplayPublisher.publish``: ``data`` has a representation for each MIME type."""


def forward_displays(shell: Any, send: Callable[[Display], None]) -> None:
    """In a worker: sends what IPython's shell displays, including the value at the end of a cell. Makes the shell print
    tracebacks and pages.
    """
    hooks: Any = importlib.import_module("IPython.core.displayhook")
    publishers: Any = importlib.import_module("IPython.core.displaypub")

    class ForwardingPublisher(publishers.DisplayPublisher):  # type: ignore[misc]
        set_parent = _ignore_parent

        def publish(self, data: Any, metadata: Any = None, **details: Any) -> None:
            if len(data) > 1:
                # A notebook can only show widgets that its own kernel, the program, has made.
                data = {kind: value for kind, value in data.items() if kind != _WIDGET}
            named = {name: details[name] for name in ("transient", "update") if details.get(name)}
            send(Display(data=dict(data), metadata=dict(metadata or {}), **named))

        def clear_output(self, wait: bool = False) -> None:
            pass  # The program's cell also shows output of other calls.

    class ForwardingHook(hooks.DisplayHook):  # type: ignore[misc]
        # Attributes that the hook of a Jupyter kernel has.
        topic = None
        set_parent = _ignore_parent

        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            send(Display(data=dict(format_dict), metadata=dict(md_dict or {})))

        def finish_displayhook(self) -> None:
            self._is_active = False

    def print_traceback(_type: Any, _value: Any, lines: Any) -> None:
        print(traceback_text(shell, lines), file=sys.stderr)

    # The constructor of a hook clears the variables of the latest outputs, so keep their values.
    names = ("_", "__", "___")
    variables = {name: shell.user_ns[name] for name in names if name in shell.user_ns}
    hook = ForwardingHook(shell=shell)
    shell.user_ns.update(variables)
    for name in names:
        setattr(hook, name, getattr(shell.displayhook, name, ""))
    shell.display_pub = ForwardingPublisher(shell=shell)
    # The program was captured while a cell ran, so its hook is installed already. Replace that hook too.
    shell.displayhook = shell.display_trap.hook = sys.displayhook = hook
    shell._showtraceback = print_traceback
    shell.set_hook("show_in_pager", _print_page, 0)


def traceback_text(shell: Any, lines: Any) -> str:
    """Returns the traceback as the shell would show it."""
    return str(shell.InteractiveTB.stb2text(lines))


def _ignore_parent(_self: Any, _parent: Any) -> None:
    """Does nothing: the program knows the cell to which output belongs."""


def _print_page(_shell: Any, page: Any, start: int = 0, screen_lines: int = 0) -> None:
    print(page["text/plain"] if isinstance(page, dict) else page)


def show(payload: Payload) -> None:
    """In the program: shows a display from a worker."""
    try:
        display = payload.load()
        if (shell := running_shell()) is not None:
            shell.display_pub.publish(**display)
        elif "text/plain" in display["data"]:
            print(display["data"]["text/plain"], flush=True)
    except Exception:  # A display that cannot be shown must not end a call.
        traceback.print_exc()
