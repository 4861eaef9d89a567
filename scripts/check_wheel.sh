#!/usr/bin/env bash
# Build the wheel, install it in a clean environment, import it, and start a run outside the repository.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/find_python.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip wheel -qq --no-deps -w "$work/dist" .
"$work/venv/bin/python" -m pip install -qq -c constraints.txt "$work"/dist/vla_zoo-*.whl
cd "$work"
venv/bin/python -c "import vla_gym, vla_policies, zoo; print(vla_gym.list_envs())"
venv/bin/vla-zoo train --algo ppo --env Toy-Reach -n 1024 --eval-episodes 6 --seed 0 -f "$work/logs"
test -f "$work/logs/ppo/Toy-Reach_1/evaluations.npz"
test -f "$work/logs/ppo/Toy-Reach_1/report.html"

# Without its extra a benchmark says how to get it, in one line and with exit code 2.
code=0
venv/bin/vla-zoo train --env LIBERO-Spatial 2> missing.txt || code=$?
cat missing.txt
[ "$code" = 2 ]
[ "$(wc -l < missing.txt)" = 1 ]
grep -q "pip install" missing.txt
echo "The wheel works outside the repository."
