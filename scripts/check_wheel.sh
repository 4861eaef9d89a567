#!/usr/bin/env bash
# Build what is published, look at its metadata and size, install it in fresh environments, and use it outside the
# repository.
#     scripts/check_wheel.sh [PYTHON]            with the dependencies' own releases, under constraints.txt (minutes)
#     scripts/check_wheel.sh --borrow PYTHON     with those that PYTHON has, read through a .pth file (half a minute)
# Where DIST names a folder, what was built and found right is left there.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
MOST_BYTES=1000000  # of the wheel with the code
borrow=
if [ "${1:-}" = --borrow ]; then borrow=yes; shift; fi
python=${1:-$(scripts/find_python.sh)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "== $*"; }
# NAME: a fresh environment, and its Python in `new`
fresh() {
    new=$work/$1/bin/python
    "$python" -m venv --without-pip "$work/$1"
    [ -z "$borrow" ] || "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        > "$("$new" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
}
# FILES: what is published here goes into the environment in `new`, without a look at other places when borrowing
install() {
    if [ -n "$borrow" ]; then
        "$python" -m pip --python "$new" install -qq --no-deps --no-index --no-build-isolation "$@"
    else
        "$python" -m pip --python "$new" install -qq -c constraints.txt "$@"
    fi
}
# COMMAND: it ends with exit code 2 and one line, which holds `pip install`
refused() {
    local code=0
    "$@" 2> "$work/said" > /dev/null || code=$?
    cat "$work/said"
    [ "$code" = 2 ] && [ "$(wc -l < "$work/said")" = 1 ] && grep -q "pip install" "$work/said"
}

say "building"
tools=$python
if [ -z "$borrow" ]; then
    fresh tools
    tools=$new
    "$python" -m pip --python "$tools" install -qq -c constraints.txt hatchling twine
fi
"$tools" -m hatchling build -d "$work/dist" > /dev/null
(cd agents && "$tools" -m hatchling build -t wheel -d "$work/dist" > /dev/null)
(cd "$work/dist" && wc -c -- *)
"$tools" -m twine --no-color check --strict "$work"/dist/*
[ "$(wc -c < "$(echo "$work"/dist/vla_zoo-*.whl)")" -le "$MOST_BYTES" ]

say "the wheel"
fresh wheel
install "$work"/dist/vla_zoo-*.whl
zoo=$work/wheel/bin/vla-zoo
wheel_python=$new
cd "$work"
"$new" -c "import vla_gym, vla_policies, zoo; assert vla_gym.__file__.startswith('$work'), vla_gym.__file__"
"$zoo" --version
"$zoo" train --algo ppo --env Toy-Reach -n 1024 --eval-episodes 6 --seed 0 -f "$work/logs" > train.txt
grep evaluated train.txt
test -f logs/ppo/Toy-Reach_1/evaluations.npz
test -f logs/ppo/Toy-Reach_1/report.html
"$zoo" enjoy --env Toy-Reach --episodes 1 | tail -1
# Without the agents, and without its extra a benchmark, says how to get them.
refused "$zoo" enjoy -i agents/ppo/LIBERO-Object
[ -n "$borrow" ] || refused "$zoo" train --env LIBERO-Spatial
cd - > /dev/null

say "the agents"
new=$wheel_python
if [ -n "$borrow" ]; then
    install "$work"/dist/vla_zoo_agents-*.whl
else
    install --find-links "$work/dist" "vla-zoo[agents,metaworld]"
fi
(cd "$work" && "$zoo" enjoy -i agents/ppo/MetaWorld-window-close --episodes 1 --no-render | tail -1)

say "the source distribution"
fresh sdist
install "$work"/dist/vla_zoo-*.tar.gz
(cd "$work" && "$work/sdist/bin/vla-zoo" train --env Toy-Reach --dry-run | grep "nothing was started")
if [ -n "${DIST:-}" ]; then mkdir -p "$DIST" && cp "$work"/dist/* "$DIST"; fi
echo "The wheels and the source distribution work outside the repository."
