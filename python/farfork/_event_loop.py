"""The event loop of :mod:`asyncio` that runs the program at a checkpoint, such as the loop of a notebook's kernel."""

from __future__ import annotations

import asyncio


def leave_event_loop() -> None:
    """In a child: makes this thread leave the loop, so that the calls of the child can run loops of their own."""
    if (loop := asyncio._get_running_loop()) is not None:
        task = asyncio.current_task(loop)
        if task is not None:
            asyncio.tasks._leave_task(loop, task)
        asyncio._set_running_loop(None)
        asyncio.set_event_loop(asyncio.new_event_loop())
