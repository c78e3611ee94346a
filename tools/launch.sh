# Finds a Python that is new enough and hands over to tools/bootstrap.py. Sourced by tools/test, tools/demo and
# tools/bench; not a program of its own. Everything that can be said without Python is said here.
#
#   BEDROCKISH_PYTHON   the interpreter to build the environment from (default: the first good one on PATH)
#   BEDROCKISH_VENV     where the environment lives (default: .venv beside tools/)

set -eu

launch() {
    root=$1
    shift
    seen=""
    for candidate in ${BEDROCKISH_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        seen="$seen $candidate is $version;"
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            exec "$candidate" -P "$root/tools/bootstrap.py" "$@"
        fi
    done
    if [ -n "$seen" ]; then
        echo "bedrockish needs Python 3.11 or newer, found:$seen" >&2
    else
        echo "bedrockish needs Python 3.11 or newer; no working Python was found (${BEDROCKISH_PYTHON:-python3} on PATH)" >&2
    fi
    echo "install one (Debian 12: apt install python3 python3-venv) or name it: BEDROCKISH_PYTHON=/path/to/python3.11 $0" >&2
    exit 2
}
