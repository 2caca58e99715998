# SPDX-License-Identifier: GPL-2.0
"""A vendor's RDMA stack as OFED is one, made of the kernel's own source to test against.

It replaces `ib_core` and soft-RoCE in the guest, with members added to their structures where OFED
has added some, and comes with a tree to build other modules with, as OFED's development package
does.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
from pathlib import Path

import cache
from buildroot import BuildRoot
from kernel import Kernel
from report import Failure, run, step

# To be raised when `_make` makes something else of the same kernel and the texts below.
_RECIPE = "2"

# What is put behind which line of `rdma/ib_verbs.h`: in the structures of devices, and in the one
# that a client registers.
_DEVICES = {
    "struct ib_device_ops {": "\tvoid (*vendor_hint)(struct ib_device *device, u32 hint);",
    "struct ib_device_attr {": "\tu64 vendor_capabilities[2];",
    "struct ib_qp_attr {": "\tu32 vendor_hint;",
}
_CLIENTS = {"struct ib_client {": "\tu64 vendor_flags;"}

FLAVOURS = {"devices": _DEVICES, "devices-clients": _DEVICES | _CLIENTS}

_COMPAT = """\
/* SPDX-License-Identifier: GPL-2.0 */
#ifndef LINUX_26_COMPAT_H
#define LINUX_26_COMPAT_H

#include "../../compat/config.h"

#ifndef HAVE_VENDOR_RDMA
#error "this tree is not configured"
#endif

#endif
"""

# Headers of the kernel that are no RDMA are shadowed, too.
_SHADOW = """\
/* SPDX-License-Identifier: GPL-2.0 */
#ifndef COMPAT_LINUX_SLAB_H
#define COMPAT_LINUX_SLAB_H

#include_next <linux/slab.h>

#endif
"""

# A function that the kernel's own ib_core does not have.
_EXPORT = """
int ib_vendor_version(void);
int ib_vendor_version(void)
{
	return 1;
}
EXPORT_SYMBOL(ib_vendor_version);
"""

_KBUILD = """\
# SPDX-License-Identifier: GPL-2.0
LINUXINCLUDE := -I$(src)/include -I$(src)/include/uapi $(LINUXINCLUDE) \\
	-include $(src)/include/linux/compat-2.6.h
obj-m := drivers/infiniband/core/ drivers/infiniband/sw/rxe/
"""


def _sources(kernel: Kernel, tree: Path, added: dict[str, str]) -> None:
    """Write the sources of the stack, with members added."""
    common = f"linux-headers-{kernel.release.rpartition('-')[0]}-common"
    include = kernel.sources / common / "include"
    shutil.copytree(kernel.infiniband, tree / "drivers/infiniband")
    shutil.copytree(include / "rdma", tree / "include/rdma")
    shutil.copytree(include / "uapi/rdma", tree / "include/uapi/rdma")
    files = {
        "include/linux/compat-2.6.h": _COMPAT,
        "include/linux/slab.h": _SHADOW,
        "compat/config.h": "#define HAVE_VENDOR_RDMA 1\n",
        "configure.mk.kernel": f"KVERSION={kernel.release}\n",
        "Kbuild": _KBUILD,
    }
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    verbs = tree / "include/rdma/ib_verbs.h"
    text = verbs.read_text()
    for line, member in added.items():
        # Not in front of everything else: behind the first member.
        text, count = re.subn(
            rf"^({re.escape(line)}\n[^\n]*;\n)", rf"\g<1>{member}\n", text, flags=re.MULTILINE
        )
        if count != 1:
            raise Failure(f"{verbs} has {count} times '{line}'")
    verbs.write_text(text)
    with (tree / "drivers/infiniband/core/device.c").open("a") as file:
        file.write(_EXPORT)


def _make(root: BuildRoot, kernel: Kernel, flavour: str, path: Path) -> None:
    tree = tree_of(kernel, path)
    _sources(kernel, tree, FLAVOURS[flavour])
    log = cache.logs() / f"vendor-{kernel.release}.log"
    log.unlink(missing_ok=True)
    guest = path / "guest"
    updates = guest / "usr/lib/modules" / kernel.release / "updates"
    with step(f"Building an ib_core like OFED's ({flavour}; about a minute)") as progress:
        make = ["make", "-C", kernel.headers, f"M={tree}", f"-j{os.cpu_count() or 1}", "modules"]
        command = root.command(make, writable=[path], sources=[kernel.sources])
        run(progress, command, log)
        shutil.copytree(kernel.guest, guest, symlinks=True)
        updates.mkdir()
        for module in tree.rglob("*.ko"):
            strip: list[str | Path] = [
                "strip",
                "--strip-debug",
                "-o",
                updates / module.name,
                module,
            ]
            run(progress, root.command(strip, writable=[path]), log)
        depmod: list[str | Path] = ["depmod", "-b", guest, kernel.release]
        run(progress, root.command(depmod, writable=[path]), log)
    # As in OFED's package: what a build needs, and nothing else.
    shutil.rmtree(tree / "drivers")
    for file in (*tree.glob(".*"), *tree.glob("modules.*")):
        file.unlink()


def tree_of(kernel: Kernel, path: Path) -> Path:
    """Return where the tree to build with is, below what stands for `/`."""
    return path / "usr/src/ofa_kernel/x86_64" / kernel.release


def ensure(root: BuildRoot, kernel: Kernel, flavour: str) -> Kernel:
    """Return the kernel with a vendor's stack in its place; make that unless it is in the cache."""
    texts = (f"{FLAVOURS[flavour]}", _COMPAT, _SHADOW, _EXPORT, _KBUILD)
    name = f"vendor-{flavour}-{kernel.release}-{cache.key(_RECIPE, kernel.path.name, *texts)}"
    path = cache.entry(name, functools.partial(_make, root, kernel, flavour), space=1 << 30)
    return dataclasses.replace(kernel, vendor=path, ofed=tree_of(kernel, path))
