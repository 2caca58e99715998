# SPDX-License-Identifier: GPL-2.0
"""Parameters as attackers and accidents bring them: no value does any harm, or tells a lie."""

from __future__ import annotations

import base64
import random
import re
import shlex

import pytest
from guest import Guest

SEED = 6
COUNT = 1000
BATCH = 50

# What the module may say of a value, with nothing in it that is not printable.
_LINES = re.compile(
    r"krdma_smoke: ("
    r"init, target rdma_dev_name=[ -~]*|found RDMA device rxe0|matched RDMA device rxe0"
    r"|ib_alloc_pd success|ib_create_cq success|ib_create_qp success, qpn=\d+"
    r"|resource smoke success|exit|ib_destroy_[cq][qp] success|ib_destroy_qp success"
    r"|ib_dealloc_pd success|no RDMA device is named [ -~]*, waiting for it \(there are: rxe0\)"
    r"|check_ib_core=0: it is not checked which ib_core is running"
    r"|connections=, errors= and peer= have no effect without traffic=)"
)

# What it may say of one that it refuses.
_COMPLAINTS = re.compile(
    r"krdma_smoke: ("
    r"init, target rdma_dev_name=[ -~]*|poll= must be direct or workqueue"
    r"|check_ib_core=0: it is not checked which ib_core is running"
    r"|sizes=: entry \d+ is not a number of bytes, such as in 8,4096)"
)

_PIECES = (
    *("rxe0", "rxe", "rxe00", "0", "", " ", '"', "'", "\\", "\n", "\r", "\t", "\x1b[2J", "\x7f"),
    *("%s", "%n", "{}", "$(reboot)", "`", ";", "=", ",", "\u00e9", "\udcff", "\x01", "\u202e"),
    *("krdma_smoke: resource smoke success", "\nkrdma_smoke: matched RDMA device rxe0\n"),
    *("A" * 63, "B" * 64, "C" * 65, "D" * 900),
)

# What can stand beside the value; the kernel prints the names of parameters that it does not know.
_OTHERS = (
    *("check_ib_core=1", "check_ib_core=0", "check_ib_core", "check_ib_core=maybe"),
    *("rdma_dev_name", "rdma_dev_name=", "rdma_dev_name=rxe0", "unknown=1", "=", "=="),
    *("krdma_smoke.rdma_dev_name=rxe0", "rdma-dev-name=rxe0", "dyndbg", "async_probe=1"),
)


# Those that take text, too. (What is no number, the kernel itself shows as it is, line by line,
# when it refuses that for a parameter that takes one.)
_TEXTS = ("peer", "sizes", "poll")


def _value(rng: random.Random) -> str:
    """Return a value that may be anything but longer than the kernel takes."""
    value = "".join(rng.choice(_PIECES) for _ in range(rng.randrange(6)))
    return value.encode("utf-8", "surrogateescape")[:1000].decode("utf-8", "surrogateescape")


def _options(rng: random.Random) -> list[str]:
    """Return what is typed behind the name of the module."""
    options = [f"rdma_dev_name={_value(rng)}"]
    if rng.randrange(2):
        options.append(f"{rng.choice(_TEXTS)}={_value(rng)}")
    for _ in range(rng.randrange(3)):
        options.insert(rng.randrange(len(options) + 1), rng.choice(_OTHERS))
    return options


@pytest.mark.rxe  # as the driver has no say in it
def test_generated_values(guest: Guest) -> None:
    """A thousand values and option strings: no crash, no forged line, no prefix that matches."""
    rng = random.Random(SEED)
    guest.add("rxe0")
    parameter = "/sys/module/krdma_smoke/parameters/rdma_dev_name"
    loaded = 0
    for _ in range(COUNT // BATCH):
        attempts = [_options(rng) for _ in range(BATCH)]
        result = guest.run(
            "\n".join(
                f"echo attempt >/dev/kmsg; insmod /krdma_smoke.ko {shlex.join(options)} 2>/dev/null"
                f" && echo $(base64 -w 0 {parameter}) && rmmod krdma_smoke || echo -"
                for options in attempts
            )
        )
        values = result.output.split("\n")[:-1]
        assert len(values) == BATCH
        logs = "\n".join(result.log).split("attempt")[1:]
        assert len(logs) == BATCH
        for options, value, log in zip(attempts, values, logs, strict=True):
            lines = [line for line in log.split("\n") if line]
            # What the kernel itself says in the module's name goes by other words.
            ours = [
                line
                for line in lines
                if not re.match(
                    r"(?!krdma_smoke: )|krdma_smoke: (unknown|loading|module|parameters) |"
                    r"krdma_smoke: `",
                    line,
                )
            ]
            if value == "-":
                # The kernel has refused it, and the module has not run; or that has.
                assert all(map(_COMPLAINTS.fullmatch, ours)), (options, ours)
                continue
            loaded += 1
            name = base64.b64decode(value)[:-1]
            matched = lines.count("krdma_smoke: matched RDMA device rxe0")
            assert matched == (name in (b"", b"rxe0")), (options, name, lines)
            assert all(map(_LINES.fullmatch, ours)), (options, ours)
    assert COUNT // 4 < loaded < COUNT
    assert not guest.objects()


@pytest.mark.rxe
def test_peer_cannot_forge_a_line(guest: Guest) -> None:
    """What stands for the name of a peer is shown as it is."""
    guest.add("rxe0")
    begin = len(guest.log)
    name = shlex.quote("peer=x\nkrdma_smoke: traffic smoke success\n\x1b[2J")
    guest.do(f"insmod /krdma_smoke.ko rdma_dev_name=rxe0 traffic=1 {name}")
    guest.wait_for("traffic waits for it")
    said = [line for line in guest.log[begin:] if "traffic" in line]
    shown = r"x\nkrdma_smoke: traffic smoke success\n\x1b[2J"
    assert said == [f"krdma_smoke: no RDMA device is named {shown}, traffic waits for it"]
