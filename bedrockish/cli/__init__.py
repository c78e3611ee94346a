"""The command line.

Importing it makes a node that starts ignore SIGHUP, before the slow imports of its program. SIGHUP asks a node to read
its certificates again. Until the node has read them for the first time there is nothing to read again, but the default
action of SIGHUP would end the process. ``run_until_signal`` in ``serve`` then takes SIGHUP.
"""

import signal
import sys

NODES = ("serve", "join")  # the commands that run a node; SIGHUP of a closing terminal ends every other command

if sys.argv[1:2] and sys.argv[1] in NODES:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
