#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Makes sure that the machine has the few programs that everything else is made with: installs them
# as root on Debian and Ubuntu, and otherwise says how to.

set -eu

packages=
need() {
	command -v "$1" >/dev/null || packages="$packages $2"
}

need mmdebstrap mmdebstrap
need bwrap bubblewrap
need python3 python3
need newuidmap uidmap
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || packages="$packages debian-archive-keyring"
if command -v python3 >/dev/null && ! python3 -c 'import ensurepip' 2>/dev/null; then
	packages="$packages python3-venv"
elif ! command -v python3 >/dev/null; then
	packages="$packages python3-venv"
fi

if [ -n "$packages" ]; then
	install="apt-get install --no-install-recommends$packages"
	if ! command -v apt-get >/dev/null; then
		echo "error: missing here:$packages (names of Debian's packages); install them" >&2
		exit 1
	elif [ "$(id -u)" -ne 0 ]; then
		echo "error: programs are missing; install them: sudo $install" >&2
		exit 1
	fi
	echo "==> Installing$packages"
	log=$(mktemp)
	if ! { apt-get update && DEBIAN_FRONTEND=noninteractive $install --yes; } >"$log" 2>&1; then
		echo "error: $(grep -m 1 '^E: ' "$log" || tail -n 1 "$log") (all of it: $log)" >&2
		exit 1
	fi
	rm "$log"
fi

if [ "$(id -u)" -ne 0 ] && ! unshare --user --map-root-user true 2>/dev/null; then
	echo "error: user namespaces are not allowed here; run as root, or allow them" \
		"(Ubuntu: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0)" >&2
	exit 1
fi

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
	echo "error: $(python3 --version) is too old; Python 3.11 or later is needed" >&2
	exit 1
fi
