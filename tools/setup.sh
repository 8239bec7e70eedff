#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/setup.sh [test]
#
# Builds HARP on a fresh Debian 12: installs system packages (apt), creates .venv, builds build/.
# With `test`, it also installs what the tests need: linters, pytest, sanitizers, a browser,
# Prometheus. It skips what exists, so it can run again at any time, also after an interruption.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
with_tests=no
[ "${1:-}" != test ] || with_tests=yes

say() { printf 'harp: %s\n' "$*"; }
die() {
	printf 'harp: error: %s\n' "$*" >&2
	exit 1
}

# --------------------------------------------------------------------------------------------------
# Privilege. Files that root creates here (sudo make ...) are given to the owner of the checkout.
#
as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -E "$@"
	else
		die "sudo is missing, and this command needs root: $*"
	fi
}

give_back() {
	if [ "$(id -u)" -eq 0 ] && [ "$(stat -c %u .)" -ne 0 ]; then
		local path
		for path in .venv build harp tests; do
			[ -e "$path" ] && chown -R --reference=. "$path"
		done
	fi
}
trap give_back EXIT
# An interrupted pip or apt-get exits with a status that looks like a failure.
trap 'wait; say "interrupted. Run make again"; exit 130' INT

# Concurrent runs would overwrite each other's files.
exec 9<.
if ! flock -n 9; then
	say "waiting for another run that sets up $root"
	flock 9
fi

logged() { # runs a command silently; shows the end of its output if it fails
	local log
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1; then
		tail -n 60 "$log" >&2
		rm -f "$log"
		return 1
	fi
	grep -n 'warning:' "$log" >&2 || true
	rm -f "$log"
}

# --------------------------------------------------------------------------------------------------
# System packages.
#
missing_packages() {
	local missing=()
	need() { # need PACKAGE TEST...
		local package=$1
		shift
		"$@" >/dev/null 2>&1 || missing+=("$package")
	}
	need gcc command -v gcc
	need clang command -v clang
	need llvm command -v llvm-strip
	need pkg-config command -v pkg-config
	need libc6-dev test -e /usr/include/stdio.h
	need libbpf-dev test -e /usr/include/bpf/libbpf.h
	need libdpdk-dev pkg-config --exists libdpdk
	need libelf-dev test -e /usr/include/libelf.h
	need zlib1g-dev test -e /usr/include/zlib.h
	need iproute2 command -v ip
	need ethtool command -v ethtool
	if [ $with_tests = yes ]; then
		need chromium-headless-shell command -v chromium-headless-shell
		need clang-format command -v clang-format
		need clang-tidy command -v clang-tidy
		need libclang-rt-14-dev compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a'
		need debootstrap command -v debootstrap
		need dpkg-dev command -v dpkg-source
		need iperf3 command -v iperf3
		need pngquant command -v pngquant
		need procps command -v ps
	fi
	printf '%s\n' "${missing[@]}"
}

apt_run() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
		-o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"
}

apt_update() {
	local attempt
	for attempt in 1 2 3; do
		apt_run update && return 0
		say "apt-get update failed (attempt $attempt of 3)"
	done
	return 1
}

apt_install() {
	command -v apt-get >/dev/null || die "missing: $*. There is no apt-get; install them manually"
	say "installing system packages: $*"
	local log
	log=$(mktemp)
	# The package lists need an update only if they are absent or stale.
	if apt_run install --no-install-recommends "$@" >"$log" 2>&1; then
		rm -f "$log"
		return
	fi
	# After an interrupted installation, apt-get refuses to work until dpkg has completed it.
	as_root env DEBIAN_FRONTEND=noninteractive dpkg --configure -a >>"$log" 2>&1 || true
	apt_run -f install >>"$log" 2>&1 || true
	if ! { apt_update && apt_run install --no-install-recommends "$@"; } >>"$log" 2>&1; then
		tail -n 20 "$log" >&2
		rm -f "$log"
		die "apt-get could not install: $*. Is there a network and a package mirror?" \
			"Install them manually, then run make again"
	fi
	rm -f "$log"
}

setup_packages() {
	local missing
	mapfile -t missing < <(missing_packages)
	[ -n "${missing[0]:-}" ] || return 0
	apt_install "${missing[@]}"
	mapfile -t missing < <(missing_packages)
	[ -z "${missing[0]:-}" ] || die "still missing after apt-get: ${missing[*]}"
}

# --------------------------------------------------------------------------------------------------
# Python: 3.11 or later with its headers and the venv module.
#
python_version_ok() {
	"$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

python_complete() {
	"$1" -c '
import os, sys, sysconfig, ensurepip, venv
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
' >/dev/null 2>&1
}

find_python() {
	local candidate
	for candidate in "${PYTHON:-}" python3 python3.11 python3.12 python3.13 /usr/bin/python3; do
		[ -n "$candidate" ] || continue
		command -v "$candidate" >/dev/null || continue
		if python_version_ok "$candidate" && python_complete "$candidate"; then
			# The path of the interpreter itself: a pyenv shim depends on the directory,
			# and a virtual environment may be active, even .venv.
			"$candidate" -c 'import os, sys; print(os.path.realpath(sys._base_executable))'
			return 0
		fi
	done
	return 1
}

setup_python() {
	python=$(find_python) && return
	apt_install python3 python3-dev python3-venv
	python=$(find_python) || die "no Python 3.11 or later with headers and venv." \
		"Set PYTHON=/path/to/python3.11"
}

# --------------------------------------------------------------------------------------------------
# The virtual environment. A stamp records its interpreter, folder and list of packages. If one of
# them changes, or a run was interrupted, .venv is created again.
#
stamp_text() { # stamp_text build|test
	printf '%s\n%s\n' "$root" "$("$python" -c 'import sys; print(sys.executable, sys.version)')"
	requirements "$1"
}

# Whether the lists are for this Python: their hashes are of wheels for one version (tools/lock.py).
lock_fits() {
	"$python" tools/lock.py --fits
}

requirements() { # requirements build|test
	local lock=tools/requirements.lock
	[ "$1" = build ] || lock=tools/requirements-test.lock
	if lock_fits; then cat $lock; else "$python" tools/lock.py --ranges "$1"; fi
}

install_packages() { # install_packages build|test...
	local list hashes=(--require-hashes --only-binary :all:) from=tools/requirements.lock
	if ! lock_fits; then
		hashes=() from=pyproject.toml
		say "installing from $from without checking hashes: the lock is for Python 3.11 on x86-64"
	fi
	for list; do requirements "$list"; done >.venv/requirements.txt
	logged env PIP_ROOT_USER_ACTION=ignore .venv/bin/python -m pip install --retries 5 \
		--disable-pip-version-check "${hashes[@]}" -r .venv/requirements.txt ||
		die "pip could not install the packages of $from. Is there a network or a mirror?"
}

venv_usable() {
	[ -f .venv/harp-stamp ] && stamp_text build | cmp -s - .venv/harp-stamp &&
		.venv/bin/python -c 'import mesonbuild, Cython, numpy' >/dev/null 2>&1
}

tests_usable() {
	[ -f .venv/harp-test-stamp ] && stamp_text test | cmp -s - .venv/harp-test-stamp
}

setup_venv() {
	[ -z "${REQUIRE_HASHES:-}" ] || lock_fits || die "REQUIRE_HASHES is set, and" \
		"tools/requirements.lock is not for $python; set PYTHON to a CPython 3.11 on x86-64"
	if ! venv_usable; then
		say "creating .venv with $("$python" --version) ($python) and installing Python packages"
		rm -rf .venv
		logged "$python" -m venv .venv || die "$python could not create .venv"
		install_packages build
		rm -rf build # its compiled modules are for the previous interpreter
		stamp_text build >.venv/harp-stamp
	fi
	install_harp
	if [ $with_tests = yes ] && ! tests_usable; then
		say "installing Python packages for the tests"
		install_packages build test
		stamp_text test >.venv/harp-test-stamp
	fi
}

# Makes the package importable from the source tree. An installed copy would shadow the sources, and
# meson-python's editable mode runs ninja at every import, which fails if the user cannot write to
# build/.
install_harp() {
	local site
	site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	printf '%s\n' "$root" >"$site/harp.pth"
	printf '#!%s\nfrom harp.cli import main\n\nmain()\n' "$root/.venv/bin/python" \
		>.venv/bin/harpctl
	printf '#!%s\nfrom harp.daemon.__main__ import main\n\nmain()\n' "$root/.venv/bin/python" \
		>.venv/bin/harpd
	chmod +x .venv/bin/harpctl .venv/bin/harpd
	# torch finds its backend by an entry point, which is in the metadata of a package.
	mkdir -p "$site/harp_nccl-0.dist-info"
	printf 'Metadata-Version: 2.1\nName: harp-nccl\nVersion: 0\n' \
		>"$site/harp_nccl-0.dist-info/METADATA"
	printf '[torch.backends]\nharp = harp.torch:register\n' \
		>"$site/harp_nccl-0.dist-info/entry_points.txt"
}

# Extracts Prometheus and promtool, which tests run, from Debian's package. Installing the package
# would start a service and create a user.
setup_prometheus() {
	local work
	if command -v promtool >/dev/null && command -v prometheus >/dev/null; then return; fi
	if [ -x .venv/bin/promtool ] && [ -x .venv/bin/prometheus ]; then return; fi
	command -v apt-get >/dev/null || die "missing: prometheus and promtool. Put them on the PATH"
	say "fetching prometheus, for the tests"
	work=$(mktemp -d)
	# apt downloads as the user _apt, which must be able to enter the folder.
	chmod 755 "$work"
	fetch_prometheus() { (cd "$work" && apt-get -qq -o Acquire::Retries=3 download prometheus); }
	if ! { logged fetch_prometheus || { apt_update >/dev/null && logged fetch_prometheus; }; }; then
		rm -rf "$work"
		die "apt-get could not download prometheus. Is there a package mirror?"
	fi
	dpkg-deb -x "$work"/prometheus_*.deb "$work/x"
	install -m 755 "$work/x/usr/bin/promtool" "$work/x/usr/bin/prometheus" .venv/bin/
	rm -rf "$work"
}

# False for a build directory of another source tree, or one that an interrupted run left
# incomplete.
build_usable() {
	[ -f build/build.ninja ] && .venv/bin/python - <<'PY' >/dev/null 2>&1
import json, pathlib, sys
info = json.loads(pathlib.Path("build/meson-info/meson-info.json").read_text())
sys.exit(info["directories"]["source"] != str(pathlib.Path.cwd()) or info["error"])
PY
}

harp_import() {
	(cd / && "$root/.venv/bin/python" -c 'import harp._core, harp._coll') 2>&1 | tail -n 1 || true
}

configure() {
	rm -rf build
	say "configuring build/"
	logged meson setup build -Dpython=enabled -Dwerror=true || die "meson could not configure the build"
}

# Warnings are errors with the compilers of CI. Other compilers may warn: a tree that was never
# built completely is then built once more without -Werror.
readonly built=build/.harp-built

build() {
	say "building"
	if ! logged ninja -C build; then
		[ ! -e $built ] || die "the build failed"
		say "the build failed with warnings as errors; building again without"
		logged meson configure build -Dwerror=false || die "meson could not configure the build"
		logged ninja -C build || die "the build failed"
	fi
	touch $built
}

build_anew() {
	configure
	build
}

setup_build() {
	export PATH="$root/.venv/bin:$PATH" # meson, ninja and cython of the environment
	local fresh=no problem
	if build_usable; then
		build
	else
		[ ! -e build ] || say "build/ was moved or is incomplete: building it again"
		build_anew
		fresh=yes
	fi
	problem=$(harp_import)
	if [ -n "$problem" ] && [ $fresh = no ]; then
		say "build/ was configured for another environment: building it again"
		build_anew
		problem=$(harp_import)
	fi
	[ -z "$problem" ] || die "harp was built but can't be imported: $problem"
}

# Runs the given functions in parallel and waits for all: pip and apt-get each use one core for half
# a minute.
side_by_side() {
	local each pids=() good=yes
	for each in "$@"; do
		# Background jobs of a shell ignore SIGINT without this trap. The trap above prints
		# the message.
		{ trap 'exit 130' INT && "$each"; } &
		pids+=($!)
	done
	for each in "${pids[@]}"; do
		wait "$each" || good=no
	done
	[ $good = yes ] || exit 1
}

setup_python
side_by_side setup_packages setup_venv
[ $with_tests = no ] || setup_prometheus
setup_build
say "plugin: $root/build/plugin/libnccl-net-harp.so"
say "use it: export NCCL_NET_PLUGIN=harp NCCL_NET=HARP LD_LIBRARY_PATH=$root/build/plugin"
