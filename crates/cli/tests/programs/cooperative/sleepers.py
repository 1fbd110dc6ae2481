"""An executor whose workers sleep. Prints `running` when the workers run, and `lost` when they are lost."""

import sys
import time

import farfork

with farfork.Executor(sys.argv[1:], max_workers=4) as children:
    futures = [children.submit(time.sleep, 600) for _ in range(4)]
    while not all(future.running() for future in futures):
        time.sleep(0.01)
    print("running", flush=True)
    for future in futures:
        try:
            future.result()
        except (farfork.ConnectionLost, farfork.ChildDied) as error:
            print("lost", type(error).__name__, flush=True)
