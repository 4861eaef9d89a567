#!/usr/bin/env bash
# Bring the system libraries that rendering without a display needs. Nothing happens when they are there.
#     scripts/setup_system.sh [PYTHON]
# Installs with apt-get as root or through password-less sudo; otherwise prints the command to run.
set -euo pipefail
python=${1:-python3}

has_library() { { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -F "$1" >/dev/null; }

missing=()
need_library() { has_library "$1" || missing+=("$2"); }
need_library libGL.so.1 libgl1              # OpenCV and MuJoCo's GL loader
need_library libOSMesa.so.8 libosmesa6      # MuJoCo, software rendering
need_library libEGL.so.1 libegl1            # MuJoCo, rendering on a GPU
need_library libgthread-2.0.so.0 libglib2.0-0   # OpenCV
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    missing+=("python${version}-venv")
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    {
        echo "Missing system libraries; this is no Debian or Ubuntu, so install their counterparts of:"
        echo "    ${missing[*]}"
        echo "(OpenGL, OSMesa, EGL, GLib; on Fedora: mesa-libGL mesa-libOSMesa mesa-libEGL glib2)"
    } >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as_root=(env DEBIAN_FRONTEND=noninteractive)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n env DEBIAN_FRONTEND=noninteractive)
else
    echo "Missing system libraries. Run:  sudo apt-get install -y ${missing[*]}   then the same make again." >&2
    exit 1
fi
echo "Installing system libraries: ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
