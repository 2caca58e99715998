# SPDX-License-Identifier: GPL-2.0
"""UEFI with Secure Boot for the virtual machine: Debian's OVMF, and the variables to start it with.

They are those of a machine whose owner lets it start one kernel and nothing else, and has enrolled
a key by mokutil; that shim hands it on to the kernel is taken as done.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import cache
from archive import Archive
from buildroot import BuildRoot
from kernel import Kernel
from report import run, step

# To be raised when `_make` makes something else of the same build root.
_RECIPE = "1"

# What is used of Debian's package: the firmware, and variables before there are any.
_CODE = "OVMF_CODE_4M.secboot.fd"
_VARIABLES = "OVMF_VARS_4M.fd"

# Where the first variable comes: behind the headers of the volume and of the store in it.
_FIRST_VARIABLE = 72 + 28

# What can be in a signature list.
_SHA256 = UUID("c1c41626-504c-4092-aca9-41f936934328")
_X509 = UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")

# Whose the variables are: the platform's key, the firmware's lists, and shim's.
_GLOBAL = UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
_SECURITY_DATABASE = UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
_SHIM = UUID("605dab50-e046-4300-abb6-3dd810dd8b23")

# A variable that stays, and is there for the firmware and for the kernel; that needs a signature to
# be changed; and the state of one that was written to its end.
_STAYS = 0x07
_AUTHENTICATED = 0x20
_WRITTEN = 0x3F


@dataclass(frozen=True)
class Firmware:
    """What a machine starts with in place of QEMU's BIOS."""

    code: Path
    variables: bytes


def _image_digest(image: bytes) -> bytes:
    """Return the digest of a signed PE image, as Authenticode has it: of what is signed.

    That is not its checksum, nor where its signatures are, nor they themselves, which come last.
    """
    (header,) = struct.unpack_from("<I", image, 0x3C)
    checksum, directory = header + 24 + 64, header + 24 + 144
    (end,) = struct.unpack_from("<I", image, directory)
    parts = (image[:checksum], image[checksum + 4 : directory], image[directory + 8 : end])
    return hashlib.sha256(b"".join(parts)).digest()


def _signature_list(kind: UUID, data: bytes) -> bytes:
    """Return a signature list with one entry, of no owner."""
    size = 16 + len(data)
    return kind.bytes_le + struct.pack("<III", 28 + size, 0, size) + bytes(16) + data


def _variable(name: str, owner: UUID, attributes: int, data: bytes) -> bytes:
    """Return a variable as it is in the store."""
    encoded = f"{name}\0".encode("utf-16-le")
    header = struct.pack("<HBxI28x", 0x55AA, _WRITTEN, attributes)
    header += struct.pack("<II", len(encoded), len(data)) + owner.bytes_le
    content = header + encoded + data
    return content + b"\xff" * (-len(content) % 4)


def _make(root: BuildRoot, path: Path) -> None:
    tree, packages = path / "tree", path / "packages"
    with step("Downloading UEFI firmware (6 MB)") as progress:
        Archive(root).download(progress, ["ovmf"], packages)
        (package,) = packages.iterdir()
        unpack: list[str | Path] = ["dpkg-deb", "-x", package, tree]
        run(progress, root.command(unpack, writable=[path]), cache.logs() / "uefi.log")
        for name in (_CODE, _VARIABLES):
            (tree / "usr/share/OVMF" / name).rename(path / name)
        shutil.rmtree(packages)
        shutil.rmtree(tree)


def secure_boot(root: BuildRoot, kernel: Kernel, certificate: bytes) -> Firmware:
    """Return firmware that starts nothing but `kernel`, which is to trust a certificate (DER)."""
    name = f"uefi-{cache.key(_RECIPE, root.recipe.name)}"
    path = cache.entry(name, functools.partial(_make, root), space=1 << 27)
    keys = _signature_list(_X509, certificate)
    allowed = _signature_list(_SHA256, _image_digest(kernel.image.read_bytes()))
    written = b"".join(
        (
            # Secure Boot is on when there is one.
            _variable("PK", _GLOBAL, _STAYS | _AUTHENTICATED, keys),
            _variable("db", _SECURITY_DATABASE, _STAYS | _AUTHENTICATED, allowed),
            _variable("MokListRT", _SHIM, _STAYS, keys),
        )
    )
    empty = (path / _VARIABLES).read_bytes()
    end = _FIRST_VARIABLE + len(written)
    return Firmware(path / _CODE, empty[:_FIRST_VARIABLE] + written + empty[end:])
