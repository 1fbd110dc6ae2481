"""Runs a call in a child and pickles its outcome; the parent decodes the outcome for the call's future."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from functools import partial
from typing import Any, Callable, NoReturn, ParamSpec, TypeVar

from . import _output
from ._channel import Payload
from ._checkpoint import Child
from ._errors import OutOfMemory, RemoteTraceback
from ._event_loop import leave_event_loop

P = ParamSpec("P")
T = TypeVar("T")

#: The process id of this child; ``None`` before it runs calls.
_own_id: int | None = None

#: The call that a child runs.
Call = Callable[[], Any]

_PROTOCOL = 5


def run_in_child(child: Child, call: Call) -> NoReturn:
    """Runs a call and ends the child, whatever the outcome."""
    status = 1
    try:
        begin_child()
        leave_event_loop()
        _output.use_standard_streams()
        child.write_result(_encode_in_band(call))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        end_child(status)


def begin_child() -> None:
    """Called in a child before its first call."""
    global _own_id
    _own_id = os.getpid()


def is_forked_copy() -> bool:
    """Whether this process was made by a call with os.fork. It may return from the call, like the child itself."""
    return _own_id is not None and os.getpid() != _own_id


def end_forked_copy() -> None:
    """Called after each call of the program. Ends a process that the call has forked: it lacks the other threads, and must
    not run further calls.
    """
    if is_forked_copy():
        end_child(0)


def run_call(function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> T:
    """Calls a function, one of several in a chunk. A process that the function has forked does not return."""
    value = function(*arguments, **keywords)
    end_forked_copy()
    return value


def _end_forked_copy(error: BaseException, text: str) -> NoReturn:
    """Ends a forked process whose call has raised an exception, with the output and status of an uncaught exception."""
    status = 1
    try:
        if not isinstance(error, SystemExit):
            print(text, file=sys.stderr, end="")
        elif error.code is None or isinstance(error.code, int):
            # Like Python, which reports numbers of more than 64 bits as -1.
            code = int(error.code or 0)
            status = (code if -(1 << 63) <= code < 1 << 63 else -1) & 0xFF
        else:
            print(error.code, file=sys.stderr)
    finally:
        end_child(status)


def end_child(status: int) -> NoReturn:
    """Ends this child, even if its streams fail. Does not wait for other threads, and runs no atexit functions: both belong
    to the parent.
    """
    try:
        flush_streams()
    finally:
        os._exit(status)


def flush_streams() -> None:
    """Flushes the standard streams, so that printed text is in the child's log even if the child is killed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # The stream may be an object of the program.
            pass


def encode_outcome(call: Call, cloudpickle: Any = None) -> Payload:
    """The value or exception of a call, pickled. Buffers of the value, such as arrays, are not copied.

    The module ``cloudpickle``, if given, pickles what the standard library cannot.
    """
    try:
        value = call()
        end_forked_copy()
        try:
            return _encode_value(value, pickle)
        except Exception:
            if cloudpickle is None:
                raise
            return _encode_value(value, cloudpickle)
    except BaseException as error:
        return Payload(encode_failure(error))


def _encode_value(value: Any, pickler: Any) -> Payload:
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickler.dumps((True, value), _PROTOCOL, buffer_callback=buffers.append)
    return Payload(pickled, [buffer.raw() for buffer in buffers])


def _encode_in_band(call: Call) -> bytes:
    try:
        value = call()
        end_forked_copy()
        return pickle.dumps((True, value), _PROTOCOL)
    except BaseException as error:
        return encode_failure(error)


def encode_failure(error: BaseException, text: str | None = None) -> bytes:
    """The exception of a call, pickled, with ``text`` or its formatted traceback. Ends a process that the call has
    forked.
    """
    text = text or safe_text(lambda: "".join(traceback.format_exception(type(error), error, error.__traceback__)))
    if is_forked_copy():
        _end_forked_copy(error, text)
    description = f"{type(error).__module__}.{type(error).__qualname__}: {safe_text(lambda: str(error))}"
    try:
        error.__traceback__ = None
        # Pickled separately: the program may not have the class of the exception.
        pickled = pickle.dumps(error, _PROTOCOL)
        # Unpickle the exception here: this fails if the constructor needs other arguments.
        if not isinstance(pickle.loads(pickled), BaseException):
            raise TypeError("its __reduce__ returned no exception")
    except BaseException:  # Its class may do anything.
        pickled = pickle.dumps(RuntimeError(description), _PROTOCOL)
    return pickle.dumps((False, (pickled, description, text)), _PROTOCOL)


def safe_text(describe: Callable[[], str]) -> str:
    """The text that ``describe`` returns; the name of the exception if it raises one."""
    try:
        return describe()
    except BaseException as error:
        return f"<{type(error).__name__} while it was described>"


def run_chunk(fn: Callable[..., Any], chunk: list[tuple[Any, ...]]) -> list[bytes]:
    """The outcome of each of several calls. An exception of one does not affect the others."""
    return [_encode_in_band(partial(fn, *arguments)) for arguments in chunk]


def value_or_error(result: bytes | bytearray) -> Any:
    """Returns the value of a call, or its exception without raising it."""
    try:
        return decode_result(result)
    except BaseException as error:
        return error


def decode_result(result: bytes | bytearray) -> Any:
    """The value of a call. Raises its exception, with the child's traceback as its cause."""
    return decode_outcome(Payload(result))


def decode_outcome(payload: Payload, child: str | None = None) -> Any:
    """Like :func:`decode_result`, for a payload. With ``child``, a lack of memory names that child."""
    try:
        is_value, content = payload.load()
    except MemoryError:
        if child is None:
            raise
        raise OutOfMemory(child, payload.size) from None
    if is_value:
        return content
    pickled, description, text = content
    try:
        error = pickle.loads(pickled)
    except Exception:  # The class of the exception may do anything.
        error = None
    if not isinstance(error, BaseException):
        error = RuntimeError(description)
    try:
        error.__cause__ = RemoteTraceback(text)
    except Exception:
        pass  # The exception does not permit this attribute.
    raise error
