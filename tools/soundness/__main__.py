"""Run the search of ``tools.soundness.search``."""

import sys

from tools.soundness import search
from tools.soundness.case_search import run
from tools.soundness.faults import FAULTS

if __name__ == "__main__":
    sys.exit(run(search.__doc__, search.search, FAULTS))
