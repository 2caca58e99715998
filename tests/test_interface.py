# SPDX-License-Identifier: GPL-2.0
"""What the module shows of itself: modinfo, sysfs, symbols."""

from __future__ import annotations

from pathlib import Path

import module
from buildroot import BuildRoot
from guest import EXIT, RETURNED, Guest, said, says
from kernel import Kernel
from module import PROJECT

# The parameters, with their types and defaults.
PARAMETERS = {
    "check_ib_core": ("bool", "Y"),
    "connections": ("uint", "0"),
    "depth": ("uint", "1"),
    "errors": ("bool", "N"),
    "gid_index": ("int", "-1"),
    "peer": ("charp", ""),
    "peer_gid_index": ("int", "-1"),
    "peer_port": ("uint", "0"),
    "poll": ("charp", "direct"),
    "port": ("uint", "0"),
    "queue_pairs": ("uint", "1"),
    "rdma_dev_name": ("charp", "mlx5_0"),
    "sizes": ("charp", "8,4096,65536,1048576"),
    "traffic": ("uint", "0"),
}


def test_modinfo(root: BuildRoot, chosen: Kernel, ko: Path) -> None:
    """The module and its parameters are described."""
    lines = root.output(["modinfo", ko], readable=[PROJECT]).splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    assert fields["name"].strip() == "krdma_smoke"
    assert fields["license"].strip() == "GPL"
    assert fields["depends"].strip() == "ib_core"
    assert fields["vermagic"].split()[0] == chosen.release
    assert "RDMA" in fields["description"]
    parameters = root.output(["modinfo", "--parameters", ko], readable=[PROJECT]).splitlines()
    described = dict(sorted(line.split(":", 1) for line in parameters))
    assert list(described) == list(PARAMETERS)
    for name, (kind, default) in PARAMETERS.items():
        assert f"(default: {default or 'empty'}" in described[name]
        assert described[name].endswith(f"({kind})")


def test_no_panic_path(root: BuildRoot, ko: Path) -> None:
    """The object refers to nothing that panics."""
    symbols = module.undefined(root, ko)
    assert "ib_register_client" in symbols
    assert module.panics(symbols) == []


def test_panics_are_found(chosen: Kernel) -> None:
    """The ways to panic are found by the names that the kernel exports them under."""
    symvers = chosen.sources / f"linux-headers-{chosen.release}/Module.symvers"
    found = module.panics(line.split("\t")[1] for line in symvers.read_text().splitlines())
    for name in (
        *("panic_fmt", "panic_const_add_overflow", "panic_bounds_check"),
        *("unwrap_failed", "expect_failed", "slice_end_index_len_fail", "len_mismatch_fail"),
    ):
        assert any(symbol.endswith(name) for symbol in found), name


def test_parameter_in_sysfs(guest: Guest) -> None:
    """Everybody can read the parameter, and nobody can write it."""
    parameter = "/sys/module/krdma_smoke/parameters/rdma_dev_name"
    guest.load("rxe0")
    assert guest.do(f"stat -c %a {parameter}; cat {parameter}").output == "444\nrxe0\n"
    names = guest.do("ls /sys/module/krdma_smoke/parameters").output.split()
    assert names == list(PARAMETERS)
    for name, (_, default) in PARAMETERS.items():
        if name != "rdma_dev_name":
            shown = guest.do(f"cat /sys/module/krdma_smoke/parameters/{name}").output
            assert shown == f"{default}\n"
    assert guest.run(f"chmod 644 {parameter} && echo rxe1 >{parameter}").status != 0
    assert guest.do(f"cat {parameter}").output == "rxe0\n"
    guest.unload()
    guest.load(None)
    assert guest.do(f"cat {parameter}").output == "mlx5_0\n"


def test_parameter_needs_a_value(guest: Guest) -> None:
    """A parameter without a value, or one that does not exist, is the kernel's to judge."""
    assert guest.run("insmod /krdma_smoke.ko rdma_dev_name").status != 0
    result = guest.do("insmod /krdma_smoke.ko no_such_parameter=1")
    assert any("unknown parameter 'no_such_parameter' ignored" in line for line in result.log)


def test_events(guest: Guest) -> None:
    """What a driver reports of the objects is told."""
    guest.add("rxe0")
    guest.do("insmod /events.ko")
    guest.load("rxe0")
    parameters = "/sys/module/events/parameters"
    for parameter, line in (
        ("completion", "CQ completion callback"),
        ("cq_event", "CQ event 0"),
        ("qp_event", "QP event 1"),
    ):
        result = guest.do(f"cat {parameters}/{parameter}")
        assert says(result, [line]), said(result)
    guest.do("rmmod events")
    assert says(guest.unload(), [*EXIT, *RETURNED])
