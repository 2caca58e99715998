# SPDX-License-Identifier: GPL-2.0
"""What `make bench` is made of: counting, reading objects, and the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import against_user
import growth
import loop
import plots
import pytest
import twin
from buildroot import BuildRoot
from count import Code, CountingVm, Dump, Loaded, is_formatting
from figures import Figure, Part, Times
from kernel import Kernel
from objects import Function, Instruction, Object
from report import Failure

GENERATED = """
crate::modinfo::modinfo!("ib_core_origin=", "in-tree", "\\0");
crate::modinfo::modinfo!("ib_core_version=", "7.3.4", "\\0");
pub(crate) const NAME: &str = "in-tree 7.3.4";
pub(crate) const BUILT_IN: bool = false;
pub(crate) const IN_TREE: bool = true;
pub(crate) const BUILD_ID: Option<&[u8]> = Some(&[0x12, 0xab]);
"""


def test_header() -> None:
    """The twin knows of ib_core what the Rust module knows."""
    text = twin.header(GENERATED)
    assert 'MODULE_INFO(ib_core_version, "7.3.4");' in text
    assert '#define IB_CORE_BUILT_FOR "12ab (in-tree 7.3.4)"' in text
    assert "#define IB_CORE_BUILD_ID { 0x12, 0xab }" in text
    assert "#define IB_CORE_BUILT_IN 0" in text
    assert "#define IB_CORE_IN_TREE 1" in text
    text = twin.header(GENERATED.replace("Some(&[0x12, 0xab])", "None"))
    assert '#define IB_CORE_BUILT_FOR "in-tree 7.3.4"' in text
    assert "#define IB_CORE_HAS_BUILD_ID 0" in text


def test_figures() -> None:
    """A bar is of the ratio, or of the value; what has none neither passes nor fails."""
    assert Figure("a", "bytes", 125, 100, ratio_max=1.25).passed is True
    assert Figure("a", "bytes", 126, 100, ratio_max=1.25).passed is False
    assert Figure("a", "bytes", 1024, 2000, value_max=1024).passed is True
    assert Figure("a", "bytes", 1025, 2000, value_max=1024).passed is False
    assert Figure("a", "messages/s", 200, 100, ratio_min=2.0).passed is True
    assert Figure("a", "messages/s", 199, 100, ratio_min=2.0).passed is False
    # What nothing can be compared with is not within a bar.
    assert Figure("a", "bytes", 1, 0, ratio_max=1.0).passed is False
    assert Figure("a", "bytes", 1, 0, ratio_min=1.0).passed is False
    assert Figure("a", "bytes", 1, 2).passed is None
    figure = Figure("size", "bytes", 1500, 1000.5, ratio_max=1.25)
    text = Part("Title", [figure], ["a note"], {}).markdown()
    assert "| figure | Rust | C | ratio | bar |  |\n" in text
    assert "| size, bytes | 1,500 | 1,000.50 | 1.499 | ≤ 1.25 | FAIL |\n" in text
    assert "- a note\n" in text


def test_steps() -> None:
    """A step's time is the one it says itself, whatever it has printed before."""
    output = """Linux 7.3.4 of Debian
==> Making a build root: Debian trixie with rustc (about 1 GB)
    20 s  Unpacking rustc
    done, 41.5 s
==> the module takes the device
    # insmod /krdma_smoke.ko
==> Building the module
    done, 1.2 s
smoke success: all
"""
    assert loop.steps(output) == {
        "Making a build root: Debian trixie with rustc": 41.5,
        "Building the module": 1.2,
    }
    text = Times(
        "Title", {"from nothing": {"a": 1.04, "b": 2}, "once more": {"b": 3}}, []
    ).markdown()
    assert "| step, s | from nothing | once more |\n" in text
    assert "| a | 1.0 |  |\n" in text


LATENCY = """\
#, usec
1, 40.5
2, 41
3, 1.2e+03
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 8 4 40.50 1300.24 41.06 353.01 561.04 1200.00 1300.24
"""

RATE = """\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 8          10000            0.00               0.04   		     0.004661
"""

RESULTS = """{"state": "success", "tests": [
  {"test": "send_recv", "size": 8, "messages": 2, "elapsed_ns": 1000,
   "latency_ns": {"p50": 900, "p99": 950, "histogram": [[900, 903, 2]]},
   "delivery_ns": {"p50": 500, "p99": 600, "histogram": [[498, 500, 1], [597, 600, 1]]}},
  {"test": "send_with_imm", "size": 8, "messages": 2, "elapsed_ns": 1000}
]}"""


def test_perftest_is_read() -> None:
    """What perftest prints is read as it is, its slowest samples too, or not at all."""
    sample = against_user.parse_latency(LATENCY, 8, 4)
    assert sample.values == {"p50": 41.06, "p99": 1200.0}
    assert sample.times == [(40.5, 1), (41.0, 1), (1200.0, 1)]
    assert against_user.parse_rate(RATE, 8, 10000).values == {"rate": pytest.approx(4661)}
    with pytest.raises(Failure, match="3 latencies"):
        against_user.parse_latency(LATENCY.replace("\n 8 4 ", "\n 8 9 "), 8, 9)
    with pytest.raises(Failure, match="something else"):
        against_user.parse_rate("", 8, 10000)


def test_results_are_read() -> None:
    """A latency is one way where there is one; only what perftest has, too, is taken."""
    found = against_user.parse_results(RESULTS)
    assert list(found) == [("send", 8)]
    assert found["send", 8].values == {"p50": 0.5, "p99": 0.6, "rate": 2e6}
    assert found["send", 8].times == [(0.5, 1), (0.6, 1)]
    with pytest.raises(Failure, match="traffic is failed"):
        against_user.parse_results('{"state": "failed", "reason": "?", "tests": []}')


def test_plot(tmp_path: Path) -> None:
    """A plot is the same for the same figures, and is no more than what can be seen."""
    times = [(1.0 + index / 100_000, 1) for index in range(100_000)]
    details = {"krdma_smoke": {"times": times}, "perftest": {"times": [(3.0, 2), (40.0, 1)]}}
    files = [tmp_path / name for name in ("a.svg", "b.svg")]
    for file in files:
        plots.latencies(details, file)
    texts = [file.read_text() for file in files]
    assert texts[0] == texts[1]
    assert "SPDX-License-Identifier" in texts[0]
    assert all(f">{name}<" in texts[0] for name in details)
    assert len(texts[0]) < 50_000


def counted(cost: Callable[[int], int]) -> growth.Counts:
    """Return counts of which each device takes what the function says of its number."""
    return {
        ("device", number, "taken"): 300 + sum(map(cost, range(number))) for number in (1, 2, 8, 64)
    }


def test_growth() -> None:
    """What costs more, the more there are, misses its bar; what one alone costs does not count."""
    flat, steep = counted(lambda _: 10), counted(lambda number: 10 + number)
    figures = growth.figures(flat, steep)
    assert [figure.rust for figure in figures] == [310, 10, 10, 10]
    assert [figure.passed for figure in figures] == [None, True, True, True]
    figures = growth.figures(steep, flat)
    assert [figure.passed for figure in figures] == [None, True, False, False]


class FakeObject(Object):
    """An object file that is made up."""

    def __init__(self, functions: list[Function], lines: list[str]) -> None:
        """Take functions, and the instructions: `offset text`, a symbol behind a `;`."""
        self.ko = Path("fake.ko")
        self.functions = functions
        self.instructions = []
        for line in lines:
            offset, _, rest = line.partition(" ")
            text, _, symbol = rest.partition(" ;")
            self.instructions.append(Instruction(".text", int(offset, 16), text, symbol))


def test_stack() -> None:
    """The deepest chain goes through calls, and through jumps that leave no frame behind."""
    it = FakeObject(
        [
            Function("top", ".text", 0, 0x10),
            Function("middle", ".text", 0x10, 0x10),
            Function("middle.cold", ".text", 0x50, 0x10),
            Function("tail", ".text", 0x20, 0x10),
            Function("leaf", ".text", 0x30, 0x10),
        ],
        [
            *("0 push %rbx", "1 sub $0x20,%rsp", "5 call 5 ;middle", "a pop %rbx", "b ret"),
            *("10 add $0xffffffffffffff80,%rsp", "15 jne 50 <middle.cold>"),
            *("18 sub $0xffffffffffffff80,%rsp", "1c jmp 20 <tail>"),
            *("20 sub $0x8,%rsp", "22 call 30 <leaf>", "24 ret"),
            *("30 push %rbx", "31 ret"),
            *("50 call 5 ;leaf", "55 jmp 18 <middle+0x8>"),
        ],
    )
    chain = it.deepest_chain(["leaf", "top"])
    assert chain.functions == ("top", "middle", "leaf")
    assert chain.bytes == (8 + 0x20 + 8) + (0x80 + 8) + (8 + 8)
    assert it.deepest_chain(["tail"]).bytes == (8 + 8) + (8 + 8)
    assert it.largest_frame().functions == ("middle",)


def test_counting_by_function() -> None:
    """A repeating instruction counts once, formatting and what belongs to others do not."""
    it = FakeObject(
        [
            Function("f", ".text", 0, 0x10),
            Function("_RNvX4core3fmt7Display3fmt", ".text", 0x10, 0x10),
        ],
        ["0 mov %rax,%rbx", "3 rep stos %rax,%es:(%rdi)", "6 ret", "10 ret"],
    )
    helper = Code(0x9000, 0x9010, "rust_helper_atomic_read")
    loaded = Loaded(it, {".text": 0x1000}, [helper])
    counts = {0x1000: 2, 0x1003: 64, 0x1006: 2, 0x1010: 5, 0x9000: 3, 0x9010: 7, 0x5000: 9}
    assert loaded.by_function([Dump(1, counts)]) == {"f": 6, "rust_helper_atomic_read": 3}


@pytest.mark.parametrize("name", ["_RNvXs4_NtB5_7AddressNtNtC_6kernel3fmt7Display3fmt"])
def test_formatting(name: str) -> None:
    """What makes text of a value is known by its name."""
    assert is_formatting(name)
    assert not is_formatting("rust_helper_atomic_read")


@pytest.mark.debian
def test_counts_are_the_same(root: BuildRoot, chosen: Kernel, tmp_path: Path) -> None:
    """What a module does when a device comes is the same, to the instruction, each time."""
    it = Object(root, twin.directory(chosen) / f"{twin.NAME}.ko")
    provider = twin.build_provider(root, chosen).ko
    with CountingVm(root, chosen, [it], provider, tmp_path / "count") as vm:
        vm.start_counting()
        loaded = vm.load(it, "rdma_dev_name=null0")
        found = [vm.come_and_go(loaded) for _ in range(2)]
        assert found[0][0]["krdma_smoke_add"] > 0
        assert found[0][1]["krdma_smoke_remove"] > 0
        assert found[0] == found[1]
        assert not vm.splats()
