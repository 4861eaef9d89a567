#!/bin/sh
# Print the first Python >= 3.11 on PATH; say what to install when there is none.
set -eu
for name in python3 python3.11 python3.12 python3.13; do
    path=$(command -v "$name") || continue
    if "$path" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        echo "$path"
        exit 0
    fi
done
echo "No Python 3.11, 3.12 or 3.13 on PATH. On Debian or Ubuntu: apt-get install python3.11 python3.11-venv" >&2
exit 1
