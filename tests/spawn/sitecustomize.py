"""Makes spawn the start method, as on a Mac. A Python with this folder on its path imports it when it starts.

Spawned processes do so too, and add a line to the file that the variable SPAWNED names.
"""

import multiprocessing
import os
import sys

multiprocessing.set_start_method("spawn")
if "--multiprocessing-fork" in sys.orig_argv:
    with open(os.environ["SPAWNED"], "a") as file:
        file.write(f"{os.getpid()}\n")
