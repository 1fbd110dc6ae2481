"""Parses a JSON document of 150 KB, and writes it again."""

import json
import random

DOCUMENT_BYTES = 150_000


def make_document():
    generator = random.Random(1)
    records, size = [], 0
    while size < DOCUMENT_BYTES:
        record = {
            "id": len(records),
            "name": f"user{generator.randrange(10**6)}",
            "score": round(generator.random(), 6),
            "tags": [generator.choice(["red", "green", "blue"]) for _ in range(3)],
        }
        records.append(record)
        size += len(json.dumps(record)) + 2
    return json.dumps(records)


DOCUMENT = make_document()


def handler(payload):
    return json.dumps(json.loads(DOCUMENT))
