# SPDX-License-Identifier: GPL-2.0
"""Writes rust-project.json, by which an editor's rust-analyzer understands the module.

It is the kernel's own `make rust-analyzer`, run in the build root for the kernel that KERNEL names;
the paths in it are then made those of this machine.
"""

from __future__ import annotations

import json
import os

import kernel
import module
from module import PROJECT
from report import main, step


def _main() -> int:
    root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
    with step("Building the module, whose bindings are part of its source"):
        module.build(root, chosen)
        path = module.directory(chosen)
        module.kbuild(root, chosen, path, "rust-analyzer")
    text = (path / "rust-project.json").read_text()
    for source in chosen.sources.iterdir():
        text = text.replace(f"/usr/src/{source.name}", f"{source}")
    project = json.loads(text.replace('"/usr', f'"{root.path}/usr'))
    # The kernel's script takes every file for a crate whose name ends the name of an object.
    (crate,) = (c for c in project["crates"] if c["root_module"].endswith("krdma_smoke.rs"))
    crate["root_module"] = f"{PROJECT}/krdma_smoke.rs"
    crate["env"]["KRDMA_SMOKE_BINDINGS"] = f"{path}/bindings_generated.rs"
    # It is the last one, and nothing depends on what goes.
    kernels = [c for c in project["crates"] if c["root_module"].startswith("/")]
    project["crates"] = [*(c for c in kernels if c is not crate), crate]
    (PROJECT / "rust-project.json").write_text(json.dumps(project, indent=1))
    print(f"{PROJECT}/rust-project.json is for Linux {chosen.release}")
    return 0


if __name__ == "__main__":
    main(_main)
