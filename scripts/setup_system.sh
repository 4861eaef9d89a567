#!/usr/bin/env bash
# Bring the system libraries that rendering without a display needs. Nothing happens when they are there.
#     scripts/setup_system.sh [PYTHON]
# Installs with apt-get as root or through password-less sudo; otherwise prints the command to run.
# OpenGL (LIBERO, Meta-World) is required, with OSMesa or EGL. Vulkan (ManiSkill) is brought where it can be: without it the rest works.
set -euo pipefail
python=${1:-python3}

# The first Mesa whose software Vulkan driver shares semaphores as SAPIEN wants (VK_KHR_external_semaphore_fd).
MESA=24.3

has_library() { { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -F "$1" >/dev/null; }
new_enough() { [ -n "$1" ] && dpkg --compare-versions "$1" ge "$MESA"; }
has_vulkan() {
    has_library libvulkan.so.1 || return 1
    if command -v dpkg-query >/dev/null; then
        new_enough "$(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null || true)"
    else
        compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null
    fi
}
no_vulkan() { echo "ManiSkill will not render here: $* Everything else works." >&2; }

missing=()
wanted=()  # better, but MuJoCo renders with one of OSMesa and EGL
need_library() { has_library "$1" || missing+=("$2"); }
need_library libGL.so.1 libgl1              # OpenCV and MuJoCo's GL loader
need_library libgthread-2.0.so.0 libglib2.0-0   # OpenCV
if has_library libOSMesa.so.8; then         # MuJoCo, software rendering
    has_library libEGL.so.1 || wanted+=(libegl1)    # MuJoCo, rendering on a GPU
elif has_library libEGL.so.1; then
    wanted+=(libosmesa6)
else
    missing+=(libosmesa6 libegl1)
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    missing+=("python${version}-venv")
fi
if has_vulkan; then vulkan=there; else vulkan=missing; fi
[ ${#missing[@]} -gt 0 ] || [ ${#wanted[@]} -gt 0 ] || [ $vulkan = missing ] || exit 0

if ! command -v apt-get >/dev/null; then
    [ $vulkan = there ] || no_vulkan "it needs Vulkan with Mesa >= $MESA (on Fedora: mesa-vulkan-drivers)."
    [ ${#missing[@]} -gt 0 ] || exit 0
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
    # One of OSMesa and EGL is there, and that is enough.
    [ $vulkan = there ] || no_vulkan "it needs Vulkan with Mesa >= $MESA. Run as root: $0."
    [ ${#missing[@]} -gt 0 ] || exit 0
    echo "Missing system libraries. Run:  sudo apt-get install -y ${missing[*]}   then the same make again." >&2
    exit 1
fi
# Only what goes wrong is shown: apt-get says it on its error output.
apt_install() { "${as_root[@]}" apt-get "${apt_options[@]}" install -y -qq --no-install-recommends "$@" >/dev/null; }
apt_options=()

echo "Asking apt-get for system libraries"
"${as_root[@]}" apt-get update -qq || [ ${#missing[@]} -eq 0 ] || exit 1
if [ ${#missing[@]} -gt 0 ]; then
    echo "Installing system libraries: ${missing[*]}"
    apt_install "${missing[@]}"
fi
if [ ${#wanted[@]} -gt 0 ]; then
    echo "Installing ${wanted[*]} as well"
    apt_install "${wanted[@]}" || echo "apt-get could not install ${wanted[*]}; rendering works without." >&2
fi
[ $vulkan = missing ] || exit 0

# Vulkan: the distribution's own Mesa when it is new enough, else the one in its backports. The backports are
# read from the mirror this machine already uses, for this one installation; its list of sources stays as it is.
candidate() { apt-cache policy mesa-vulkan-drivers | awk '$1 == "Candidate:" && $2 != "(none)" {print $2}'; }
in_backports() {
    apt-cache "${apt_options[@]}" madison mesa-vulkan-drivers |
        awk -F '[| ]+' -v suite="$backports" 'index($0, suite "/main") {print $2; exit}'
}
add_backports() {
    local distribution mirror sources
    distribution=$(. /etc/os-release && echo "${ID:-}")
    mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="${backports%-backports}" '$1 == release && $2 == "main" && !found++ {print $3}')
    [ -n "$mirror" ] || return 1
    eval "$(apt-config shell sources Dir::Etc::sourceparts/d)"
    cp "$sources"/*.list "$sources"/*.sources "$parts" 2>/dev/null || true
    {
        printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n' "$mirror" "$backports"
        [ ! -f "/usr/share/keyrings/$distribution-archive-keyring.gpg" ] ||
            echo "Signed-By: /usr/share/keyrings/$distribution-archive-keyring.gpg"
    } >"$parts/vla-zoo-backports.sources"
    apt_options=(-o "Dir::Etc::sourceparts=$parts")
    "${as_root[@]}" apt-get "${apt_options[@]}" update -qq
}

package=mesa-vulkan-drivers
version=$(candidate)
if ! new_enough "$version"; then
    backports=$(. /etc/os-release && echo "${VERSION_CODENAME:-none}")-backports
    parts=$(mktemp -d)
    trap 'rm -rf "$parts"' EXIT
    chmod 755 "$parts"  # apt reads it as another user
    if add_backports; then
        package+=/$backports  # with what it needs from there, and nothing else
        found=$(in_backports)
        version=${found:-$version}
    fi
fi
if ! new_enough "$version"; then
    no_vulkan "it needs Mesa >= $MESA, but this system and its backports offer ${version:-none}."
elif echo "Installing Vulkan for ManiSkill: $package $version" && ! apt_install "$package" libvulkan1; then
    no_vulkan "apt-get could not install $package."
fi
