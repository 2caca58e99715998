# SPDX-License-Identifier: GPL-2.0
"""The systems that scenarios run on: a kernel with an RDMA stack, and a driver of RDMA devices."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import custom
import kernel
import module
import vendor
from buildroot import BuildRoot
from kernel import Kernel


@dataclass(frozen=True)
class System:
    """A system, of which only the kernel may have to be made yet."""

    flavour: str = ""
    """The kind of vendor's RDMA stack; the kernel's own if there is none."""
    debug: str = ""
    """The fragment of configuration that makes it a debug kernel; Debian's own if there is none."""
    driver: str = "rxe"
    """What `rdma link add` makes devices of."""
    memory: str = "512M"
    """How much of it the guest has."""

    @functools.cache  # noqa: B019 - there are only those of SYSTEMS, which stay
    def ensure(self) -> tuple[BuildRoot, Kernel]:
        """Return its build root and its kernel; make what is not in the cache."""
        if self.debug:
            return custom.ensure_custom(self.debug, ["vm.config", f"{self.debug}.config"])
        root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
        return root, vendor.ensure(root, chosen, self.flavour) if self.flavour else chosen

    def directory(self) -> Path:
        """Return where the module is built for it."""
        return module.directory(self.ensure()[1], self.variant)

    @property
    def variant(self) -> str:
        """What keeps apart the modules for the same kernel."""
        return f"vendor-{self.flavour}" if self.flavour else ""


# The name of the kernel's own RDMA stack, beside those of vendors'.
IN_TREE = "in-tree"

SYSTEMS = {
    IN_TREE: System(),
    **{name: System(flavour=name) for name in vendor.FLAVOURS},
    # Those of the lab: KASAN takes an eighth of the memory and keeps what was freed for a while.
    "kasan": System(debug="kasan", memory="1G"),
    "kasan-siw": System(debug="kasan", driver="siw", memory="1G"),
    "kcsan": System(debug="kcsan", memory="1G"),
}
