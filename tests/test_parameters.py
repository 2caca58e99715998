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
    r"|check_ib_core=0: it is not checked which ib_core is running)"
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


def _value(rng: random.Random) -> str:
    """Return a value that may be anything but longer than the kernel takes."""
    value = "".join(rng.choice(_PIECES) for _ in range(rng.randrange(6)))
    return value.encode("utf-8", "surrogateescape")[:1000].decode("utf-8", "surrogateescape")


def _options(rng: random.Random) -> list[str]:
    """Return what is typed behind the name of the module."""
    options = [f"rdma_dev_name={_value(rng)}"]
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
                f"echo try >/dev/kmsg; insmod /krdma_smoke.ko {shlex.join(options)} 2>/dev/null"
                f" && echo $(base64 -w 0 {parameter}) && rmmod krdma_smoke || echo -"
                for options in attempts
            )
        )
        values = result.output.split("\n")[:-1]
        assert len(values) == BATCH
        logs = "\n".join(result.log).split("try")[1:]
        assert len(logs) == BATCH
        for options, value, log in zip(attempts, values, logs, strict=True):
            lines = [line for line in log.split("\n") if line]
            if value == "-":
                # The kernel has refused it, and the module has not run.
                assert not [line for line in lines if _LINES.fullmatch(line)], options
                continue
            loaded += 1
            name = base64.b64decode(value)[:-1]
            matched = lines.count("krdma_smoke: matched RDMA device rxe0")
            assert matched == (name in (b"", b"rxe0")), (options, name, lines)
            # What the kernel itself says in the module's name goes by other words.
            ours = [
                line
                for line in lines
                if not re.match(
                    r"(?!krdma_smoke: )|krdma_smoke: (unknown|loading|module|parameters) ", line
                )
            ]
            assert all(map(_LINES.fullmatch, ours)), (options, ours)
    assert COUNT // 4 < loaded < COUNT
    assert not guest.objects()
