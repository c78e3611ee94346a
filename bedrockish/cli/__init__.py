"""The command line.

Importing it makes a starting node ignore SIGHUP until ``run_until_signal`` in ``serve`` handles it. SIGHUP asks a node
to read its certificates again; during the slow imports of a node's program, its default action would end the process.
"""

import signal
import sys

NODES = ("serve", "join")  # the commands that run a node; SIGHUP of a closing terminal ends every other command

if sys.argv[1:2] and sys.argv[1] in NODES:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
