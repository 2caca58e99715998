#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: load.sh krdma_smoke.ko [PARAMETER=VALUE...]
#
# Loads the module if it was built for the ib_core that is loaded. Says why if not, and what to do.

set -eu

if [ $# -eq 0 ] || [ ! -f "$1" ]; then
	echo "load: ${1:-no module} is not there; build it by 'make', and give its path" >&2
	exit 2
fi

# The kernel prints a build-id nowhere, but shows the ELF note that it is the end of.
note=/sys/module/ib_core/notes/.note.gnu.build-id
btf=/sys/kernel/btf/ib_core

recorded() {
	modinfo -F "ib_core_$1" "$module"
}

refuse() {
	echo "load: $module was built for ib_core $built ($(recorded origin) $(recorded version))," \
		"and $*" >&2
	echo "load: type 'make' to build it again, for the ib_core that modprobe loads" \
		"($(modinfo -n ib_core 2>/dev/null || echo none)); if another one is loaded," \
		"unload the RDMA drivers and ib_core, or reboot" >&2
	exit 1
}

module=$1
for parameter; do
	case $parameter in
	check_ib_core=[0nN]*)
		echo "load: check_ib_core=0: it is not checked which ib_core is loaded" >&2
		exec insmod "$@"
		;;
	esac
done

if [ ! -d /sys/module/ib_core ] && ! modprobe ib_core; then
	echo "load: there is no ib_core to load for Linux $(uname -r)" >&2
	exit 1
fi

built=$(recorded build_id)
if [ -z "$built" ]; then
	echo "load: $module does not say which ib_core it was built for, so it is not checked" >&2
elif [ -r $note ]; then
	# Behind 12 bytes of header and "GNU".
	loaded=$(od -A n -t x1 -j 16 $note | tr -d ' \n')
	[ "$built" = "$loaded" ] || refuse "the one that is loaded is $loaded"
elif [ -r $btf ] && [ -n "$(recorded btf)" ]; then
	[ "$(recorded btf)" = "$(sha256sum <$btf | cut -d ' ' -f 1)" ] ||
		refuse "the one that is loaded has other types ($btf)"
else
	echo "load: ib_core shows neither $note nor $btf, so it is not checked" >&2
fi

exec insmod "$@"
