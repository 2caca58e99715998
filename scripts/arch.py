# SPDX-License-Identifier: GPL-2.0
"""The architectures that a kernel can be of; everything is built on amd64."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """An architecture, under the names that it has in different places."""

    debian: str
    """Debian's name: `amd64`."""
    kbuild: str
    """The kernel's: `x86`."""
    triplet: str
    """That of the compilers and of the directory of libraries: `x86_64-linux-gnu`."""
    qemu: tuple[str, ...]
    """QEMU, with the machine that it is to be."""
    cpu: str
    """The processor to emulate, with all that QEMU knows."""
    console: str
    """The first serial port's name in the guest."""
    parameters: tuple[str, ...] = ()
    """What the kernel has to be told in a guest, whose processors may have to wait for the host."""


AMD64 = Arch(
    debian="amd64",
    kbuild="x86",
    triplet="x86_64-linux-gnu",
    qemu=("qemu-system-x86_64",),
    # Five-level page tables, which are newest, have had KASAN see wild accesses while Linux boots.
    cpu="max,la57=off",
    console="ttyS0",
    # What has a kernel stop for good while it boots if a processor of its waits for the host: it
    # tries the timer once, and watches the time with interrupts off, where jiffies stand still.
    parameters=("no_timer_check", "tsc=reliable"),
)

ARM64 = Arch(
    debian="arm64",
    kbuild="arm64",
    triplet="aarch64-linux-gnu",
    qemu=("qemu-system-aarch64", "-machine", "virt"),
    # The real algorithm of pointer authentication takes most of the time that emulation has.
    cpu="max,pauth-impdef=on",
    console="ttyAMA0",
)
