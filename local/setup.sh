#!/bin/sh
# Make .venv, or install what it lacks: local/setup.sh run|dev|bench PYTHON...
#
# make calls this script under a lock, if requirements/<name>.txt is newer than its stamp in .venv, or if
# .venv/.origin is not true. That file is empty during an installation, so an interrupted one starts again.
# The pip inside of Python's ensurepip installs uv, and uv installs the rest. Both check each package's hash.
set -eu
name=$1
shift
cd "$(dirname "$0")/.."
[ ! -L .venv ] || exit 0 # another checkout's
exec >&2                 # standard output belongs to the target of make

say() {
    echo "Setting up: $*"
}

# The Makefile has the same line.
origin() {
    # shellcheck disable=SC2046,SC2086 - echo joins the words by one blank, as make does
    echo $(pwd -P) $(readlink -f .venv/bin/python) ${ORDERPOST_PYTHON-}
}

# An environment without .origin is somebody else's, so it stays.
is_usable() {
    [ -x .venv/bin/python ] && [ "$(cat .venv/.origin 2>/dev/null || origin)" = "$(origin)" ]
}

# Debian has ensurepip and venv in a package of their own, so an older Python with them is better.
find_python() {
    for modules in sys,ensurepip,venv sys; do
        for python in "$@"; do
            "$python" -c "import $modules; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1 && return
        done
    done
    echo "orderpost needs Python 3.11 or later. Install python3.11 with its venv module."
    exit 1
}

make_venv() {
    find_python "$@"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null || {
        echo "Python $version lacks its venv module. On Debian and Ubuntu: apt-get install python$version-venv"
        exit 1
    }
    say ".venv with Python $version"
    rm -rf .venv
    "$python" -m venv --without-pip .venv
}

# ensurepip would take two seconds to install pip, which only this script needs.
install_with_pip() {
    wheels=$(.venv/bin/python -c 'import ensurepip, sysconfig
print(sysconfig.get_config_var("WHEEL_PKG_DIR") or ensurepip.__path__[0] + "/_bundled")')
    PYTHONPATH=$(echo "$wheels"/pip-*.whl) .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --no-input --require-hashes "$@"
}

# Not every platform has a wheel of uv. Building it would take a compiler of Rust.
install_uv() {
    [ .venv/bin/uv -nt requirements/uv.txt ] || install_with_pip --only-binary :all: -r requirements/uv.txt
}

# Without bytecode, the nine processes of `make run` would each compile what they import, because they start at once,
# and again at each start where PYTHONDONTWRITEBYTECODE is set.
install_with_uv() {
    .venv/bin/uv pip install --quiet --python .venv/bin/python --system-certs --compile-bytecode \
        --require-hashes "$@"
}

start=$(date +%s)
is_usable || make_venv "$@"
: >.venv/.origin
say "the packages of requirements/$name.txt"
if ! install_uv || ! install_with_uv -r "requirements/$name.txt"; then
    say "uv could not do it, so pip tries, which reads pip.conf. This takes about a minute."
    install_with_pip -r "requirements/$name.txt"
fi
for packages in .venv/lib/python3*/site-packages; do
    pwd -P >"$packages/orderpost.pth" # importable from every current directory
done
origin >.venv/.origin
touch ".venv/.installed-$name"
say "done in $(($(date +%s) - start)) s"
