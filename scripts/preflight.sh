#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: preflight.sh KVER KDIR
#
# Tells what is missing to build the module for a kernel, a line each with the way to get it.

set -eu

kver=$1
kdir=$2
missing=0

say() {
	echo "preflight: $*" >&2
	missing=1
}

# Prints what the kernel's configuration has for $1, without quotes.
config() {
	sed -n "s/^$1=\"\\{0,1\\}\\([^\"]*\\)\"\\{0,1\\}\$/\\1/p" "$kdir/include/config/auto.conf"
}

for path in "$PWD" "$kdir" "${RUSTC:-}" "${BINDGEN:-}"; do
	case $path in
	*[[:space:]\'\"\$\#:%\\\;\&\(\)\*\?\<\>\|\`]*)
		say "Kbuild cannot use '$path', whose name has a space or a special character;" \
			"move it"
		exit 1
		;;
	esac
done

if [ ! -e "$kdir/Makefile" ]; then
	say "no kernel build tree at $kdir; install the headers of $kver, which must have Rust" \
		"(Debian, Ubuntu: linux-headers-$kver; Fedora: kernel-devel-$kver), or set KDIR"
	exit 1
elif [ ! -e "$kdir/include/config/auto.conf" ]; then
	say "$kdir is not configured as a kernel build tree (no include/config/auto.conf); set KDIR"
	exit 1
fi

if [ -s "$kdir/include/config/kernel.release" ]; then
	kver=$(cat "$kdir/include/config/kernel.release")
fi

# What the kernel's Rust crates offer changes from one to the next.
if [ "$(printf '7.2\n%s\n' "$kver" | sort -V | head -n 1)" != 7.2 ]; then
	say "Linux $kver is too old: 7.2 or later is needed; choose another kernel"
	exit 1
fi

if [ -z "$(config CONFIG_INFINIBAND)" ]; then
	say "the kernel has no RDMA (CONFIG_INFINIBAND is not set); choose another kernel"
fi

if [ "$(config CONFIG_RUST)" != y ]; then
	say "the kernel has no Rust (CONFIG_RUST is not set); choose another kernel," \
		"such as that of Debian trixie-backports"
	exit 1
fi

if [ "$(config CONFIG_DEBUG_FS)" != y ]; then
	say "the kernel has no debugfs (CONFIG_DEBUG_FS is not set), where the module shows results;" \
		"choose another kernel"
fi

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
	say "python3 is missing or older than 3.9; install it (Debian, Ubuntu: python3)"
fi

for file in rust/libmacros.so rust/libcore.rmeta rust/libpin_init.rmeta rust/libkernel.rmeta; do
	if [ ! -e "$kdir/$file" ]; then
		say "the headers have no Rust crates ($kdir/$file);" \
			"for a Debian kernel 'make headers KVER=$kver' adds them"
		break
	fi
done

rustc=${RUSTC:-rustc}
wanted=$(config CONFIG_RUSTC_VERSION_TEXT)
found=$("$rustc" --version 2>/dev/null) || found=missing
if [ "$found" != "$wanted" ]; then
	say "$rustc is $found, and the kernel was built by $wanted;" \
		"install that one or point RUSTC to it"
fi

bindgen=${BINDGEN:-bindgen}
header=$(mktemp --suffix=.h)
trap 'rm -f "$header"' EXIT
echo 'int preflight;' >"$header"
if ! "$bindgen" --version >/dev/null 2>&1; then
	say "bindgen is missing; install it (Debian, Ubuntu: bindgen;" \
		"others: cargo install bindgen-cli) or point BINDGEN to it"
elif ! "$bindgen" "$header" >/dev/null 2>&1; then
	say "bindgen does not find libclang; install it (Debian, Ubuntu: libclang-dev)" \
		"or set LIBCLANG_PATH"
fi

exit $missing
