"""A database that the parent continues to change. If a child with the memory of prepare found the later file, its
database would be corrupt.
usage: database.py FILE
"""

import os
import sqlite3
import sys
import time

connection = sqlite3.connect(sys.argv[1])
connection.execute("create table numbers (number integer)")
connection.commit()
print("ready", os.getpid(), 0, flush=True)
while True:
    connection.execute("insert into numbers values (1)")
    connection.commit()
    print("tick", time.monotonic_ns() // 1000, flush=True)
    time.sleep(0.002)
