#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: KEY=FILE CERT=FILE sign.sh krdma_smoke.ko KVER KDIR
#
# Signs the module for a kernel that loads only what is signed, by that kernel's own sign-file. A
# signature that the module has is replaced. KEY can be a PKCS#11 URI; the passphrase of the key or
# the PIN of the token is taken from KBUILD_SIGN_PIN.

set -eu

fail() {
	echo "sign: $*" >&2
	exit 1
}

module=$1
kver=$2
kdir=$3
key=${KEY:-}
cert=${CERT:-}
sign_file=$kdir/scripts/sign-file

if [ -z "$key" ] || [ -z "$cert" ]; then
	fail "which key? Give it and its certificate: make sign KEY=MOK.key CERT=MOK.der"
elif [ ! -f "$module" ]; then
	fail "$module is not there; build it by 'make'"
elif [ ! -x "$sign_file" ]; then
	fail "no $sign_file; install the headers of $kver (Debian: linux-headers-$kver, which needs" \
		"linux-kbuild-${kver%-*}; Ubuntu: linux-headers-$kver; Fedora: kernel-devel-$kver)" \
		"or set KDIR"
fi
case $key in
pkcs11:*) ;;
*) [ -f "$key" ] || fail "KEY=$key is not there" ;;
esac
[ -f "$cert" ] || fail "CERT=$cert is not there"

hash=$(sed -n 's/^CONFIG_MODULE_SIG_HASH="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' \
	"$kdir/include/config/auto.conf")
[ -n "$hash" ] || fail "the kernel knows no signatures (CONFIG_MODULE_SIG is not set)"

# A signature stands behind the module: itself, 12 bytes that end in its length, and this line.
size=$(stat -c %s "$module")
replaced=
if tail -c 28 "$module" | grep -qaxF '~Module signature appended~'; then
	length=$(tail -c 32 "$module" | od -A n -t u4 -N 4 --endian=big)
	size=$((size - 28 - 12 - length))
	replaced=', in place of the signature that it had'
	[ $size -gt 0 ] || fail "$module is damaged; 'make clean', then 'make'"
fi

unfinished=$module.tmp
trap 'rm -f "$unfinished" "$unfinished.~signed~"' EXIT
head -c "$size" "$module" >"$unfinished"
if ! said=$("$sign_file" "$hash" "$key" "$cert" "$unfinished" 2>&1); then
	case $said in
	*'key values mismatch'*)
		fail "KEY=$key and CERT=$cert do not belong together"
		;;
	*'unable to get passphrase'* | *'bad password read'*)
		fail "KEY=$key has a passphrase; put it into the environment, as KBUILD_SIGN_PIN"
		;;
	*'bad decrypt'*)
		fail "KBUILD_SIGN_PIN is not the passphrase of KEY=$key"
		;;
	*)
		fail "$(printf '%s\n' "$said" | tail -n 1):" \
			"$(printf '%s\n' "$said" | sed -n 's/^- SSL error:[0-9A-F]*:\(.*\): .*/\1/p' |
				head -n 1);" \
			"KEY has to be a private key in PEM, and CERT its certificate in PEM or DER"
		;;
	esac
fi
mv "$unfinished" "$module"
echo "$module is signed by $key ($hash)$replaced"
