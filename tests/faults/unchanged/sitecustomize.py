"""Python imports this module before a script, if its folder is in PYTHONPATH: the script stays as it is."""

import os
import sys

# The supervisor, which has --restarts, and processes that others start, such as multiprocessing's, train nothing.
if "FAULTS_OF_A_SCRIPT" in os.environ and "mps_trainer" in sys.orig_argv and "--restarts" not in sys.orig_argv:
    from tests.faults.restarted import start_with_faults

    start_with_faults()
