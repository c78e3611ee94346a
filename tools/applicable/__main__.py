"""Run the search of ``tools.applicable.search``."""

import sys

from tools.applicable import search
from tools.applicable.faults import FAULTS
from tools.soundness.case_search import run

if __name__ == "__main__":
    sys.exit(run(search.__doc__, search.search, FAULTS))
