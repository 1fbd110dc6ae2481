"""SQLite in the middle of a transaction that is larger than its cache: new rows are in the file, and the journal has
the old pages. The program waits until its standard input has data or ends. Then it writes more, commits and prints a
checksum.

usage: transaction.py DIRECTORY
"""

import os
import select
import sqlite3
import sys
import zlib

ROWS_COUNT = 20000
CACHE_PAGES = 20


def rows(first):
    return ((n, f"row {n * n % 9973}", n * 0.5) for n in range(first, first + ROWS_COUNT))


def checksum(connection):
    crc = 0
    for row in connection.execute("SELECT number, text, half FROM rows ORDER BY number"):
        crc = zlib.crc32(repr(row).encode(), crc)
    return crc


def main():
    path = os.path.join(sys.argv[1], "database")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA cache_size = {CACHE_PAGES}")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT, half REAL)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows(0))
    connection.execute("COMMIT")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE rows SET text = text || ' again' WHERE number % 3 = 0")
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows(ROWS_COUNT))
    print("half", flush=True)

    reads = 0
    while reads == 0 or not select.select([0], [], [], 0)[0]:
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (2 * ROWS_COUNT,)
        reads += 1
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows(2 * ROWS_COUNT))
    connection.execute("DELETE FROM rows WHERE number % 7 = 0")
    connection.execute("COMMIT")

    other = sqlite3.connect(path)
    assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert checksum(other) == checksum(connection)
    print("result", checksum(other), other.execute("SELECT count(*) FROM rows").fetchone()[0])
    print(".", flush=True)


main()
