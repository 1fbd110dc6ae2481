"""Records of :mod:`logging`: workers send their records, and the program's loggers handle them."""

from __future__ import annotations

import logging
import pickle
import traceback
from logging.handlers import QueueHandler
from typing import Any, Callable

#: The attributes of every record. All other attributes were passed as ``extra``, and may be any object.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({})))


class _RecordSender(QueueHandler):
    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        """Sends a record with formatted message and traceback."""
        standard = {name: value for name, value in vars(record).items() if name in _STANDARD_ATTRIBUTES}
        others = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        try:
            pickled = pickle.dumps(others)
        except Exception:  # Pickling may raise any exception.
            pickled = pickle.dumps({})
        # Pickle the other attributes separately: the program may lack their classes.
        self._send(pickle.dumps((standard, pickled)))


def send_records(send: Callable[[bytes], None]) -> None:
    """In a worker: sends the records that its loggers would handle. The handlers of the loggers run in the program
    only, because the worker lacks the files to which they write.
    """
    sender = _RecordSender(send)
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    for logger in [logging.root, *loggers]:
        logger.handlers = [sender] if logger is logging.root or not logger.propagate else []


def handle_record(pickled: bytes | bytearray, worker: str) -> None:
    """In the program: passes a record to its loggers. The attribute ``worker`` names the origin."""
    try:
        standard, others = pickle.loads(pickled)
        record = logging.makeLogRecord({**standard, **_load_others(others), "worker": worker})
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            # Not `handle`, because the logger's filters ran in the worker.
            logger.callHandlers(record)
    except Exception:  # Attributes and handlers of the program may raise anything. Calls continue.
        traceback.print_exc()


def _load_others(pickled: bytes) -> dict[str, Any]:
    """Returns the attributes that were passed as ``extra``; none if one of them cannot be unpickled here."""
    try:
        others: dict[str, Any] = pickle.loads(pickled)
        return others
    except Exception:  # A class may raise anything, or exist only in the worker.
        return {}
