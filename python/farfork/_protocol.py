"""The messages between a program and its node's daemon: little-endian, without padding.

``include/farfork_protocol.h`` defines and documents the messages. ``crates/program/tests/layout.rs`` compares
:func:`layout` with that header.
"""

from __future__ import annotations

import struct
from typing import Any, Iterator, NamedTuple

MAGIC = 0x4D475046
VERSION = 1
FDS_MAX = 3

CHECKPOINT, FORK, KILL, DROP, HELLO = 1, 2, 3, 4, 5
SEED, CHILD, FAILED, STARTED, ENDED, WELCOME = 16, 17, 18, 19, 20, 21

FORK_ANY_NODE, FORK_OWNS_SEED, FORK_UNTRUSTED, FORK_USER_NAMESPACE, FORK_NO_PAYLOAD, FORK_CHANNEL = 1, 2, 4, 8, 16, 32
KILL_KEEPS_CHILD = 1
ENDED_EXIT, ENDED_SIGNAL, ENDED_LOST = 1, 2, 3
NETWORKS = {"private": 0, "shared": 1, "host": 2}
LIMIT_TIME, LIMIT_MEMORY, LIMIT_NODE_MEMORY = 1, 2, 3
LIMITS = {LIMIT_TIME: "time", LIMIT_MEMORY: "memory", LIMIT_NODE_MEMORY: "node_memory"}

_ID, _NAME, _NODES, _STRATEGY, _EGRESS, _TEXT = "96s", "64s", "4096s", "32s", "1024s", "2048s"
_CHILD_INDEX_FIELDS = (("batch", "I"), ("index", "I"))


class ProtocolError(Exception):
    """The bytes are not a valid message of this version."""


class Structure(NamedTuple):
    """A message: the name of its structure in C, and its fields after the header."""

    kind: int
    name: str
    fields: tuple[tuple[str, str], ...]

    @property
    def codec(self) -> struct.Struct:
        return struct.Struct("<" + "".join(code for _, code in (*HEADER, *self.fields)))


#: The structure in the second page that is offered for the injected calls of a capture.
PAGES = (("magic", "Q"), ("address", "Q"), ("bytes", "Q"))
PAGES_MAGIC = 0x5345474150464646

HEADER = (("magic", "I"), ("version", "H"), ("kind", "H"), ("socket_inode", "Q"))

_HEADER = struct.Struct("<" + "".join(code for _, code in HEADER))

STRUCTURES = (
    Structure(
        CHECKPOINT,
        "checkpoint_request",
        (("ttl_ms", "Q"), ("name", _NAME), ("pages", "Q"), ("pages_bytes", "Q"), ("kept_thread", "Q")),
    ),
    Structure(
        FORK,
        "fork_request",
        (
            ("batch", "I"),
            ("first", "I"),
            ("count", "I"),
            ("flags", "I"),
            ("timeout_ms", "Q"),
            ("seed", _ID),
            ("nodes", _NODES),
            ("strategy", _STRATEGY),
            ("memory_bytes_max", "Q"),
            ("cpu_millicores_max", "Q"),
            ("processes_max", "I"),
            ("network", "I"),
            ("egress", _EGRESS),
        ),
    ),
    Structure(KILL, "kill_request", (*_CHILD_INDEX_FIELDS, ("flags", "I"), ("reserved", "I"))),
    Structure(DROP, "drop_request", (("seed", _ID),)),
    Structure(HELLO, "hello_request", ()),
    Structure(WELCOME, "welcome_reply", (("node", _NAME),)),
    Structure(SEED, "seed_reply", (("pause_us", "Q"), ("prepare_us", "Q"), ("seed", _ID))),
    Structure(CHILD, "child_reply", (("index", "I"), ("has_payload", "I"), ("seed", _ID), ("child", _ID))),
    Structure(FAILED, "failed_reply", (*_CHILD_INDEX_FIELDS, ("code", "I"), ("reserved", "I"), ("text", _TEXT))),
    Structure(STARTED, "started_reply", (*_CHILD_INDEX_FIELDS, ("child", _ID))),
    Structure(
        ENDED,
        "ended_reply",
        (*_CHILD_INDEX_FIELDS, ("how", "I"), ("value", "I"), ("has_result", "I"), ("limit", "I"), ("text", _TEXT)),
    ),
)

#: Computed in the parent: a child that decodes a reply should write to few pages, because each must be copied.
_BY_KIND = {structure.kind: (structure, structure.codec) for structure in STRUCTURES}

MESSAGE_BYTES_MAX = max(codec.size for _, codec in _BY_KIND.values())


class Message(dict[str, Any]):
    """The fields of a message after its header, with texts as :class:`str`."""

    kind: int


def encode(kind: int, socket_inode: int, **fields: int | str) -> bytes:
    """Encodes a request. Absent fields are zero or empty.

    Raises :class:`ValueError` if a text is too long for its field.
    """
    structure, codec = _BY_KIND[kind]
    values = [_field_value(name, code, fields.pop(name, "" if code.endswith("s") else 0)) for name, code in structure.fields]
    assert not fields, f"{structure.name} has no {fields}"
    return codec.pack(MAGIC, VERSION, kind, socket_inode, *values)


def decode(message: bytes) -> Message:
    """Decodes a reply. Raises :class:`ProtocolError`."""
    if len(message) < _HEADER.size:
        raise ProtocolError(f"a message of {len(message)} bytes")
    magic, version, kind, _ = _HEADER.unpack_from(message)
    structure, codec = _BY_KIND.get(kind, (None, None))
    if magic != MAGIC or version != VERSION or structure is None or codec is None or len(message) != codec.size:
        raise ProtocolError(f"kind {kind}, version {version}, {len(message)} bytes")
    values = codec.unpack(message)[len(HEADER) :]
    decoded = Message()
    decoded.kind = kind
    for (name, _), value in zip(structure.fields, values):
        decoded[name] = value.partition(b"\0")[0].decode(errors="replace") if isinstance(value, bytes) else value
    return decoded


def _field_value(name: str, code: str, value: int | str) -> int | bytes:
    if isinstance(value, int):
        return value
    text = value.encode()
    # One byte is left for the terminating zero.
    if len(text) >= struct.calcsize(code) or b"\0" in text:
        raise ValueError(f"{name} `{value}`: it is longer than {struct.calcsize(code) - 1} bytes, or has a zero byte")
    return text


def layout() -> Iterator[tuple[str, str, int, int]]:
    """Yields structure, field (``-`` for the structure itself), offset and size, for a test."""
    header_bytes = struct.calcsize("<" + "".join(code for _, code in HEADER))
    yield ("header", "-", 0, header_bytes)
    yield from _layout_rows("header", HEADER, 0)
    yield ("pages", "-", 0, struct.calcsize("<" + "".join(code for _, code in PAGES)))
    yield from _layout_rows("pages", PAGES, 0)
    for structure in STRUCTURES:
        yield (structure.name, "-", 0, structure.codec.size)
        yield (structure.name, "header", 0, header_bytes)
        yield from _layout_rows(structure.name, structure.fields, header_bytes)


def _layout_rows(name: str, fields: tuple[tuple[str, str], ...], offset: int) -> Iterator[tuple[str, str, int, int]]:
    for field, code in fields:
        size = struct.calcsize("<" + code)
        yield (name, field, offset, size)
        offset += size
