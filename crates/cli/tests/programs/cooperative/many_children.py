"""An executor that requests many children, which sleep. Prints `asked` before the children have started."""

import sys
import time

import farfork

with farfork.Executor(sys.argv[1:], reuse_workers=False) as children:
    results = children.map(time.sleep, [600] * 40)
    print("asked", flush=True)
    list(results)
