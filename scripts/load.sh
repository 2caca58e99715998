#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: load.sh krdma_smoke.ko [PARAMETER=VALUE...]
#
# Loads the module if it was built for the ib_core that is loaded. Says why if not, and what to do.

set -eu

say() {
	echo "load: $*" >&2
}

PATH=$PATH:/usr/sbin:/sbin
note=/sys/module/ib_core/notes/.note.gnu.build-id
btf=/sys/kernel/btf/ib_core

if [ $# -eq 0 ]; then
	say "which module? Give the path of krdma_smoke.ko, which 'make' builds"
	exit 2
elif [ ! -f "$1" ]; then
	say "$1 is not there; build it by 'make', and give its path"
	exit 2
elif ! command -v modinfo >/dev/null; then
	say "modinfo is missing; install kmod"
	exit 2
elif [ "$(id -u)" -ne 0 ]; then
	say "only root can load modules; try 'sudo $0 $*'"
	exit 2
fi

if [ -d /sys/module/krdma_smoke ]; then
	say "krdma_smoke is loaded already; 'rmmod krdma_smoke' first"
	exit 1
fi

module=$1

recorded() {
	modinfo -F "ib_core_$1" "$module"
}

refuse() {
	version=$(recorded version)
	say "$module was built for ib_core $built ($(recorded origin)${version:+ $version}), and $*"
	say "type 'make' to build it again, for the ib_core that modprobe loads" \
		"($(modinfo -n ib_core 2>/dev/null || echo none)); if another one is loaded," \
		"unload the RDMA drivers and ib_core, or reboot"
	exit 1
}

# The last one counts, and is spelled as the kernel's parse_args() and kstrtobool() have it.
check=yes
for argument; do
	case $(printf %s "$argument" | tr -d '"' | tr - _) in
	check_ib_core=[nNfFdD0]* | check_ib_core=[oO][fF]*) check=no ;;
	check_ib_core | check_ib_core=*) check=yes ;;
	esac
done
if [ $check = no ]; then
	say "check_ib_core=0: it is not checked which ib_core is loaded"
	exec insmod "$@"
fi

if [ "$(recorded origin)" = built-in ]; then
	exec insmod "$@"
fi

modprobe ib_core

built=$(recorded build_id)
if [ -n "$built" ] && [ -r $note ]; then
	# Behind 12 bytes of header and "GNU".
	loaded=$(od -A n -t x1 -j 16 -N 64 $note | tr -d ' \n')
	[ "$built" = "$loaded" ] || refuse "the one that is loaded is ${loaded:-unknown}"
else
	# One that was not made with the kernel is marked.
	case $(recorded origin):$(cat /sys/module/ib_core/taint 2>/dev/null || echo '?') in
	in-tree:*O*) refuse "one that was not made with the kernel is loaded" ;;
	OFED:*[O?]*) ;;
	OFED:*) refuse "the kernel's own is loaded" ;;
	esac
	types=$(recorded btf)
	if [ -n "$types" ] && [ -r $btf ]; then
		[ "$types" = "$(sha256sum <$btf | cut -d ' ' -f 1)" ] ||
			refuse "the one that is loaded has other types ($btf)"
	elif [ -z "$built" ]; then
		say "$module does not say which ib_core it was built for, so it is not checked"
	else
		say "ib_core does not show $note, so it is not checked"
	fi
fi

exec insmod "$@"
