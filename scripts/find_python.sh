#!/bin/sh
# Print a Python that every extra has wheels for, 3.11 or 3.12; else 3.13, which ManiSkill has none for; say what to
# install when there is none.
set -eu
print_if() {  # NAME LEAST MOST: the minor versions of Python 3 that will do
    path=$(command -v "$1") || return 1
    "$path" -c "import sys; raise SystemExit(not (3, $2) <= sys.version_info[:2] <= (3, $3))" 2>/dev/null || return 1
    echo "$path"
}
for name in python3 python3.11 python3.12; do
    if print_if "$name" 11 12; then exit 0; fi
done
for name in python3 python3.13; do
    if print_if "$name" 13 13; then exit 0; fi
done
echo "No Python 3.11, 3.12 or 3.13 on PATH. On Debian or Ubuntu: apt-get install python3.11 python3.11-venv" >&2
exit 1
