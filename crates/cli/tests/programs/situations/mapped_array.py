"""An array that NumPy maps from a file. A child sums up the contents that the file had at prepare.
usage: mapped_array.py FILE
"""

import sys
import time

import numpy

PAYLOAD = "/run/farfork/payload"
EXIT_RIGHT = 42

numpy.save(sys.argv[1], numpy.arange(100_000, dtype=numpy.int64))
array = numpy.load(sys.argv[1], mmap_mode="r")
print(f"ready {__import__('os').getpid()} 0", flush=True)
while True:
    try:
        with open(PAYLOAD) as file:
            number = int(file.read())
        break
    except FileNotFoundError:
        print(f"tick {time.monotonic_ns() // 1000}", flush=True)
        time.sleep(0.002)
total = int(array.sum())
if total != 99_999 * 50_000:
    sys.exit(f"wrong: the sum is {total}")
print(f"result {number} {number}", flush=True)
sys.exit(EXIT_RIGHT)
