# SPDX-License-Identifier: GPL-2.0
"""Shows the module at work: on Debian's kernel, in QEMU, on a soft-RoCE device.

The environment may have KERNEL (a version, by default the newest that Debian has) and ACCEL (`tcg`,
which always works, or `kvm`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import kernel
import module
from buildroot import BuildRoot
from kernel import Kernel
from report import Failure, Step, main, step
from vm import SPLAT, Result, Vm

DEVICE = "rxe0"

# What the module says when it takes a device, and when it gives it back.
TAKEN = (
    f"found RDMA device {DEVICE}",
    f"matched RDMA device {DEVICE}",
    "ib_alloc_pd success",
    "ib_create_cq success",
    r"ib_create_qp success, qpn=\d+",
    "resource smoke success",
)
RETURNED = ("ib_destroy_qp success", "ib_destroy_cq success", "ib_dealloc_pd success")
INIT = (f"init, target rdma_dev_name={DEVICE}",)
EXIT = ("exit",)

# Its tests of traffic, in their order.
MESSAGES = ("send_recv", "send_with_imm", "rdma_write", "rdma_write_with_imm", "rdma_read")
ATOMICS = ("compare_swap", "fetch_add")

_ADD = f"rdma link add {DEVICE} type rxe netdev net0"
_SHOW = "rdma resource show pd && rdma resource show cq && rdma resource show qp"

# Data that it moves, and what it says of that: a line for each kind of message, all of this size.
_TRAFFIC = (
    f"insmod /krdma_smoke.ko rdma_dev_name={DEVICE} traffic=100 sizes=4096"
    " && grep -q 'traffic smoke ' /dev/kmsg && rmmod krdma_smoke"
)
_MOVED = (
    rf"traffic from {DEVICE} port 1 .* to {DEVICE} port 1 .*",
    *(rf"{test} \d+B depth 1: 100 ok, .*" for test in MESSAGES + ATOMICS),
    "traffic smoke success",
)

_PREFIX = "krdma_smoke: "

# What the kernel's module loader says in the module's name.
_LOADER = ("loading out-of-tree module taints kernel.", "module verification failed: ")


def said(result: Result) -> list[str]:
    """Return what the module logged during a script, a line each, without its prefix."""
    lines = [line.removeprefix(_PREFIX) for line in result.log if line.startswith(_PREFIX)]
    return [line for line in lines if not line.startswith(_LOADER)]


def says(result: Result, patterns: Sequence[str]) -> bool:
    """Tell whether what the module logged during a script matches the patterns, line by line."""
    lines = said(result)
    return len(lines) == len(patterns) and all(map(re.fullmatch, patterns, lines))


def _objects(result: Result) -> int:
    """Return how many objects are listed as the module's."""
    return result.output.count("comm [krdma_smoke]")


# Each step: what it shows, what is typed in the guest, and whether the outcome is right.
_STEPS: tuple[tuple[str, str, Callable[[Result], bool]], ...] = (
    ("an RDMA device", "rdma dev show", lambda r: DEVICE in r.output),
    (
        "the module takes the device",
        f"insmod /krdma_smoke.ko rdma_dev_name={DEVICE}",
        lambda r: says(r, INIT + TAKEN),
    ),
    ("its PD, CQ and QP", _SHOW, lambda r: _objects(r) == 3),
    ("the device goes away", f"rdma link delete {DEVICE}", lambda r: says(r, RETURNED)),
    ("the device comes back and is taken again", _ADD, lambda r: says(r, TAKEN)),
    ("the module is unloaded", "rmmod krdma_smoke", lambda r: says(r, EXIT + RETURNED)),
    ("data moves", _TRAFFIC, lambda r: says(r, INIT + TAKEN + _MOVED + EXIT + RETURNED)),
    ("nothing is left", f"{_SHOW} && rdma resource show mr", lambda r: _objects(r) == 0),
)


STEPS = len(_STEPS)


def _show(title: str, result: Result) -> None:
    print(f"==> {title}")
    print(f"    # {result.script}")
    for line in (*result.output.splitlines(), *result.log):
        print(f"    {line}")


def perform(
    root: BuildRoot,
    chosen: Kernel,
    ko: Path,
    log: Path,
    accelerator: str = "tcg",
    show: Callable[[str, Result], None] = lambda _title, _result: None,
) -> None:
    """Go through all steps in a virtual machine; `show` is told of each, `log` is the kernel's."""
    booting = Step("Booting the kernel in QEMU")
    with Vm(root, chosen, {"krdma_smoke.ko": ko}, log=log, accelerator=accelerator) as vm:
        setup = vm.run(
            f"set -e; modprobe rdma_rxe; ip link add net0 type dummy\nip link set net0 up; {_ADD}"
        )
        if setup.status != 0:
            raise Failure(f"the guest has no soft-RoCE device: {setup.output.strip()}")
        booting.done()
        wrong = []
        for title, script, right in _STEPS:
            result = vm.run(script)
            splats = [line for line in result.log if SPLAT.search(line)]
            show(title, result)
            if result.status != 0 or not right(result) or splats:
                wrong.append(title)
                print(f"    NOT as it should be (exit status {result.status})")
        if splats := vm.splats():
            wrong.append(f"the kernel log has {len(splats)} bad lines, the first: {splats[0]}")
    if wrong:
        raise Failure(f"smoke failed: {'; '.join(wrong)} (kernel log: {log})")


def _smoke() -> int:
    accelerator = os.environ.get("ACCEL") or "tcg"
    if accelerator not in ("tcg", "kvm"):
        raise Failure(f"ACCEL={accelerator} is neither tcg nor kvm")
    root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
    print(
        f"Linux {chosen.release} of Debian; KERNEL= chooses another, 'make update' looks for newer"
    )
    with step("Building the module") as progress:
        built = module.build(root, chosen)
        if built.warned:
            progress.say(built.messages)
    log = module.directory(chosen) / "smoke.log"
    perform(root, chosen, built.ko, log, accelerator, _show)
    print(f"smoke success: all {STEPS} steps as they should be, kernel log clean ({log})")
    return 0


if __name__ == "__main__":
    main(_smoke)
