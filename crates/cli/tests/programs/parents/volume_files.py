"""A parent that has files of a volume open and mapped, and a directory of it as its working directory. A child
continues to read where the parent was, and appends.

usage: volume_files.py READ WRITTEN [removed] [locked]
"""

import fcntl
import mmap
import os
import sys
import time

PAYLOAD_PATH = "/run/farfork/payload"
EXIT_RIGHT = 42
READ_BYTES_MAX = 4096

reader = os.open(sys.argv[1], os.O_RDONLY)
first = os.read(reader, len(b"first\n"))
mapping = mmap.mmap(reader, 0, access=mmap.ACCESS_READ)
writer = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(writer, b"parent\n")
os.fsync(writer)
os.chdir(os.path.dirname(sys.argv[1]))
if "removed" in sys.argv[3:]:
    os.unlink(sys.argv[1])
if "locked" in sys.argv[3:]:
    fcntl.flock(writer, fcntl.LOCK_EX)
os.write(1, f"ready {os.getpid()} 0\n".encode())

while not os.path.exists(PAYLOAD_PATH):
    time.sleep(0.002)
with open(PAYLOAD_PATH, encoding="ascii") as payload:
    number = payload.read().strip()
os.write(writer, f"child {number}\n".encode())
os.fsync(writer)
names = ",".join(sorted(os.listdir(".")))
os.write(1, b"rest " + os.read(reader, READ_BYTES_MAX).replace(b"\n", b"/") + f" mapped {mapping[0:5]!r} names {names}\n".encode())
os._exit(EXIT_RIGHT)
