"""An executor that has asked for many children, who sleep. Says `asked` before they have started."""

import sys
import time

import farfork

with farfork.Executor(sys.argv[1:], reuse_workers=False) as children:
    results = children.map(time.sleep, [600] * 40)
    print("asked", flush=True)
    list(results)
