# SPDX-License-Identifier: GPL-2.0
"""What is written for an editor."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from module import PROJECT


def test_rust_project() -> None:
    """Everything that rust-project.json names is there, and the module is its last crate."""
    subprocess.run(["make", "rust-analyzer"], cwd=PROJECT, check=True, capture_output=True)
    project = json.loads((PROJECT / "rust-project.json").read_text())
    crates = project["crates"]
    for crate in crates:
        assert Path(crate["root_module"]).is_file()
        assert all(dependency["crate"] < len(crates) for dependency in crate["deps"])
        if "proc_macro_dylib_path" in crate:
            assert Path(crate["proc_macro_dylib_path"]).is_file()
    names = [crate["display_name"] for crate in crates]
    assert {"core", "kernel", "bindings", "macros", "pin_init"} <= set(names)
    assert names.count("krdma_smoke") == 1
    module = crates[-1]
    assert module["root_module"] == f"{PROJECT}/krdma_smoke.rs"
    assert "ib_register_client" in Path(module["env"]["KRDMA_SMOKE_BINDINGS"]).read_text()
    assert crates[names.index("kernel")]["display_name"] in {d["name"] for d in module["deps"]}
    assert Path(project["sysroot"]).is_dir()
