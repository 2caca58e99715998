# SPDX-License-Identifier: GPL-2.0
"""The kernel's ib_core and a vendor's: built for the right one, refused by the wrong one.

What stands for OFED is made by `scripts/vendor.py`, in two flavours: with members added to the
structures of devices, and also to that of clients.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import vendor
from buildroot import BuildRoot
from guest import EXIT, RETURNED, Guest, init, one_each, said, says, taken
from kernel import Kernel
from module import PROJECT
from systems import System

pytestmark = pytest.mark.debian

DEVICES, CLIENTS = vendor.FLAVOURS

ID = r"[0-9a-f]{40}"


@pytest.fixture(scope="session")
def vendors(root: BuildRoot, chosen: Kernel) -> dict[str, Kernel]:
    """Return the kernel with each vendor's stack."""
    return {flavour: vendor.ensure(root, chosen, flavour) for flavour in vendor.FLAVOURS}


# What runs against what.

mismatched = pytest.mark.parametrize(
    ("system", "built"),
    [
        (CLIENTS, "in-tree"),
        ("in-tree", CLIENTS),
        (DEVICES, "in-tree"),
        ("in-tree", DEVICES),
        (CLIENTS, DEVICES),
    ],
    indirect=["system"],
)


@mismatched
def test_refused_by_insmod(guest: Guest, built: str) -> None:
    """A module that was built for another ib_core says so and is not loaded."""
    guest.add("rxe0")
    result = guest.run(f"insmod /for-{built}.ko rdma_dev_name=rxe0")
    assert result.status != 0
    assert "Invalid module format" in result.output
    origin = "in-tree" if built == "in-tree" else "OFED"
    assert says(
        result,
        [
            *init("rxe0"),
            rf"built for ib_core {ID} \({origin}.*\), but ib_core {ID} is running: "
            "run 'make' again, or load with check_ib_core=0 if you know that they are alike",
        ],
    )
    assert not guest.objects()
    guest.do("! test -e /sys/module/krdma_smoke")
    # The one that fits still can be loaded.
    assert says(guest.load("rxe0"), init("rxe0") + taken("rxe0"))


@mismatched
def test_refused_before_insmod(guest: Guest, built: str) -> None:
    """The preflight says why a module does not fit, and what to do, before the kernel sees it."""
    result = guest.run(f"/load.sh /for-{built}.ko rdma_dev_name=rxe0")
    assert result.status == 1
    first, second = result.output.splitlines()
    assert re.search(rf"was built for ib_core {ID} .* the one that is loaded is {ID}", first)
    assert "type 'make' to build it again" in second
    assert said(result) == []


@pytest.mark.parametrize(
    ("system", "built"),
    [(DEVICES, "in-tree"), ("in-tree", DEVICES)],
    indirect=["system"],
)
@pytest.mark.parametrize("command", ["insmod", "/load.sh"])
def test_second_net(guest: Guest, built: str, command: str) -> None:
    """With the check switched off, a device that is laid out in another way is left alone."""
    guest.add("rxe0")
    result = guest.do(f"{command} /for-{built}.ko rdma_dev_name= check_ib_core=0")
    left_alone = (
        r"an RDMA device is laid out in another way than those of the ib_core this module was built"
        rf" for \({ID} .*\); it is left alone; build the module again"
    )
    unchecked = "check_ib_core=0: it is not checked which ib_core is running"
    assert says(
        result,
        [*init(""), unchecked, left_alone, "no RDMA device that can be used, waiting for one"],
    ), said(result)
    assert not guest.objects()
    assert says(guest.add("rxe1"), [left_alone])
    assert says(guest.rename("rxe1", "rxe2"), [])
    assert says(guest.delete("rxe0"), [])
    assert says(guest.unload(), EXIT)


@pytest.mark.systems("in-tree", CLIENTS)
def test_check_switched_off(guest: Guest) -> None:
    """Without the check the right module works as ever, however that is spelled."""
    guest.add("rxe0")
    unchecked = "check_ib_core=0: it is not checked which ib_core is running"
    for command in ("insmod", "/load.sh"):
        for value in ("0", "n", "No", "off", "1 check_ib_core=OFF", "1 check-ib-core=0", "'\"0\"'"):
            parameters = f"rdma_dev_name=rxe0 check_ib_core={value}"
            result = guest.do(f"{command} /krdma_smoke.ko {parameters}")
            assert says(result, [*init("rxe0"), unchecked, *taken("rxe0")]), value
            assert ("not checked" in result.output) == (command == "/load.sh")
            assert says(guest.unload(), [*EXIT, *RETURNED])
        for value in ("=1", "=y", "=on", "", "=0 check_ib_core=1"):
            parameters = f"rdma_dev_name=rxe0 check_ib_core{value}"
            result = guest.do(f"{command} /krdma_smoke.ko {parameters}")
            assert says(result, [*init("rxe0"), *taken("rxe0")]), value
            assert result.output == ""
            assert says(guest.unload(), [*EXIT, *RETURNED])


def test_nothing_recorded(guest: Guest) -> None:
    """A module that does not know what it was built for says that it could not be checked."""
    guest.add("rxe0")
    unchecked = "cannot check which ib_core is running: the build recorded none"
    result = guest.do("/load.sh /for-unrecorded.ko rdma_dev_name=rxe0")
    assert "does not say which ib_core it was built for" in result.output
    assert says(result, [*init("rxe0"), unchecked, *taken("rxe0")])
    assert guest.objects() == one_each("rxe0")
    assert says(guest.unload(), [*EXIT, *RETURNED])


@pytest.mark.parametrize(
    ("system", "built"),
    [(CLIENTS, "unrecorded"), (CLIENTS, "in-tree"), ("in-tree", CLIENTS)],
    indirect=["system"],
)
def test_refused_by_origin(guest: Guest, system: System, built: str) -> None:
    """Without a build-id, the kernel's own is still told from one that is not."""
    guest.add("rxe0")
    guest.do(f"mount -t tmpfs none {NOTE}")
    result = guest.run(f"insmod /for-{built}.ko rdma_dev_name=rxe0")
    assert result.status != 0
    running = "somebody else" if system.flavour else "the kernel itself"
    assert re.fullmatch(
        rf"built for ib_core .*, but an ib_core of {running} is running: run 'make' again, .*",
        said(result)[-1],
    )
    assert not guest.objects()
    result = guest.run(f"/load.sh /for-{built}.ko rdma_dev_name=rxe0")
    assert result.status == 1
    assert "is loaded" in result.output


NOTE = "/sys/module/ib_core/notes"


@pytest.mark.parametrize(
    ("hide", "error"),
    [
        # No such file; one that is no note; one that is empty; one that is too long; a directory.
        ("", -2),
        ("head -c 36 /dev/zero >$note", -22),
        (": >$note", -22),
        ("head -c 4096 /dev/zero >$note", -22),
        ("mkdir $note", -22),
        # A note whose build-id is said to be longer than the note can be.
        (r"printf '\4\0\0\0\377\0\0\0\3\0\0\0GNU\0' >$note", -22),
    ],
)
def test_nothing_readable(guest: Guest, hide: str, error: int) -> None:
    """Where ib_core does not show its build-id, that is said, and the module works."""
    guest.add("rxe0")
    guest.do(f"mount -t tmpfs none {NOTE}; note={NOTE}/.note.gnu.build-id; {hide or 'true'}")
    unreadable = f"cannot check which ib_core is running: its build-id is not readable, ret={error}"
    assert says(guest.load("rxe0"), [*init("rxe0"), unreadable, *taken("rxe0")])
    guest.do(f"umount {NOTE}")
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_load(guest: Guest) -> None:
    """The command for users loads ib_core and the module, and passes parameters on."""
    guest.do("modprobe -r ib_core")
    result = guest.do("/load.sh /krdma_smoke.ko rdma_dev_name=some_0")
    assert result.output == ""
    assert said(result)[0] == "init, target rdma_dev_name=some_0"
    assert "loaded already" in guest.run("/load.sh /krdma_smoke.ko").output
    guest.unload()
    assert "Give the path" in guest.run("/load.sh").output
    hidden = guest.run("mv /usr/bin/modinfo /; /load.sh /krdma_smoke.ko; mv /modinfo /usr/bin")
    assert "modinfo is missing" in hidden.output
    result = guest.run("/load.sh /nowhere.ko")
    assert result.status == 2
    assert "/nowhere.ko is not there" in result.output
    guest.do("echo nobody:x:65534:65534::/:/bin/sh >/etc/passwd")
    result = guest.run("su nobody -c '/load.sh /krdma_smoke.ko'")
    assert result.status == 2
    assert "only root can load modules" in result.output


@pytest.mark.systems("in-tree", DEVICES)
def test_load_by_types(guest: Guest, system: System) -> None:
    """Without a build-id, the types of ib_core tell which one it is, where they can be compared."""
    guest.do(f"mount -t tmpfs none {NOTE}")
    result = guest.run("/load.sh /for-in-tree.ko check_ib_core=1")
    if not system.flavour:
        assert (result.status, result.output) == (0, "")
        guest.unload()
    else:
        assert result.status == 1
        assert "one that was not made with the kernel is loaded" in result.output
        # Those of a module that was built out of the kernel's tree are changed when it is loaded.
        assert "is not checked" in guest.do("/load.sh /krdma_smoke.ko").output


# What is built with what.


Make = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def make(root: BuildRoot, chosen: Kernel, clone: Path, tmp_path: Path) -> Make:
    """Return a function that types `make` on a machine with the kernel's headers.

    What is in the directory `usr-src` is in `/usr/src` there, and the programs in `tools` come
    before all others.
    """
    (tmp_path / "usr-src").mkdir()
    path = f"PATH={tmp_path}/tools:/usr/sbin:/usr/bin"

    def run(*arguments: str, target: str = "modules") -> subprocess.CompletedProcess[str]:
        where = ["-C", f"{clone}", f"KVER={chosen.release}", f"KDIR={chosen.headers}"]
        return subprocess.run(
            root.command(
                ["env", path, "make", *where, *arguments, target],
                writable=[tmp_path],
                readable=[chosen.path.parent],
                sources=[chosen.sources, tmp_path / "usr-src"],
            ),
            capture_output=True,
            text=True,
        )

    return run


def place(tmp_path: Path, tree: Path, where: str) -> Path:
    """Copy an OFED tree to somewhere in `/usr/src`."""
    path = tmp_path / "usr-src" / where
    shutil.copytree(tree, path, symlinks=True)
    return path


def ofed(kernel: Kernel) -> Path:
    """Return the tree of a vendor's stack."""
    assert kernel.ofed is not None
    return kernel.ofed


def built_for(result: subprocess.CompletedProcess[str]) -> str:
    """Return the line of a build that says which ib_core it is for."""
    assert result.returncode == 0, result
    assert "warning" not in result.stdout + result.stderr
    lines: list[str] = re.findall(r"^  IB_CORE (.*)$", result.stderr, re.MULTILINE)
    assert len(lines) == 1, result.stderr
    return lines[0]


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """Return why a build was refused."""
    assert result.returncode != 0, result
    lines: list[str] = re.findall(r"^ib_core: (.*)$", result.stderr, re.MULTILINE)
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_ofed_is_found(
    make: Make, root: BuildRoot, vendors: dict[str, Kernel], clone: Path, tmp_path: Path
) -> None:
    """OFED's tree for the kernel is found and used, and `OFED_DIR=none` takes the kernel's."""
    kernel = vendors[CLIENTS]
    place(tmp_path, ofed(kernel), f"ofa_kernel/x86_64/{kernel.release}")
    line = built_for(make(f"IB_CORE={kernel.ib_core}"))
    tree = f"/usr/src/ofa_kernel/x86_64/{kernel.release}"
    assert line.startswith("OFED (headers ")
    assert f"headers {tree}/include, symbols {tree}/Module.symvers" in line
    assert f"types as in {kernel.ib_core}" in line
    fields = root.output(["modinfo", clone / "krdma_smoke.ko"], readable=[clone])
    assert re.search(r"^ib_core_origin: *OFED$", fields, re.MULTILINE)
    (identity,) = re.findall(rf"^ib_core_build_id: *({ID})$", fields, re.MULTILINE)
    assert f"build-id {identity}" in line
    # What was built for the other one is not left.
    own = dataclasses.replace(kernel, vendor=None, ofed=None)
    line = built_for(make(f"IB_CORE={own.ib_core}", "OFED_DIR=none"))
    assert line.startswith(f"in-tree {kernel.release} (headers /usr/src/linux-headers-")
    fields = root.output(["modinfo", clone / "krdma_smoke.ko"], readable=[clone])
    assert re.search(r"^ib_core_origin: *in-tree$", fields, re.MULTILINE)


@pytest.mark.parametrize(
    ("places", "chosen_one"),
    [
        (["ofa_kernel-dkms/x86_64/{release}"], 0),
        (["ofa_kernel/{release}"], 0),
        (["ofa_kernel/default"], 0),
        (["ofa_kernel/amd64"], 0),
        (["ofa_kernel-dkms/x86_64/{release}", "ofa_kernel/x86_64/{release}"], 1),
        (["ofa_kernel/default", "ofa_kernel/x86_64/{release}"], 1),
    ],
)
def test_places(
    make: Make, vendors: dict[str, Kernel], tmp_path: Path, places: list[str], chosen_one: int
) -> None:
    """The tree is found wherever OFED puts it; of two, that for the very kernel is used."""
    kernel = vendors[DEVICES]
    wheres = [where.format(release=kernel.release) for where in places]
    for where in wheres:
        place(tmp_path, ofed(kernel), where)
    assert find(make, kernel) == f"/usr/src/{wheres[chosen_one]}"
    # A tree that may be any kernel's has to say whose it is.
    if "{release}" not in places[chosen_one]:
        (tmp_path / "usr-src" / wheres[chosen_one] / "configure.mk.kernel").unlink()
        assert "does not say which kernel it is for" in refused(make(f"IB_CORE={kernel.ib_core}"))


def find(make: Make, kernel: Kernel, *arguments: str) -> str:
    """Return which tree `make` would build with, without building."""
    result = make(f"IB_CORE={kernel.ib_core}", *arguments, "--eval=find:; @$(FIND)", target="find")
    assert result.returncode == 0, result
    found = re.search(r"^OFED_DIR=(\S*) IB_CORE=(\S+)$", result.stdout, re.MULTILINE)
    assert found, result
    assert found[2] == f"{kernel.ib_core}"
    return found[1]


def test_place_is_a_link(make: Make, vendors: dict[str, Kernel], tmp_path: Path) -> None:
    """A link to the tree of the kernel is followed."""
    kernel = vendors[DEVICES]
    place(tmp_path, ofed(kernel), f"ofa_kernel-dkms/x86_64/{kernel.release}")
    link = tmp_path / "usr-src/ofa_kernel/x86_64" / kernel.release
    link.parent.mkdir(parents=True)
    link.symlink_to(f"../../ofa_kernel-dkms/x86_64/{kernel.release}")
    (tmp_path / "usr-src/ofa_kernel/default").symlink_to(f"x86_64/{kernel.release}")
    assert find(make, kernel) == f"/usr/src/ofa_kernel-dkms/x86_64/{kernel.release}"


def test_default_is_of_another_kernel(
    make: Make, vendors: dict[str, Kernel], tmp_path: Path
) -> None:
    """`default` may lead to the tree of another kernel, which is not used."""
    kernel = vendors[DEVICES]
    tree = place(tmp_path, ofed(kernel), "ofa_kernel/x86_64/6.1.0-other")
    (tree / "configure.mk.kernel").write_text("KVERSION=6.1.0-other\n")
    (tmp_path / "usr-src/ofa_kernel/default").symlink_to("x86_64/6.1.0-other")
    line = refused(make(f"IB_CORE={kernel.ib_core}"))
    assert "ofa_kernel/x86_64/6.1.0-other is for Linux 6.1.0-other, not for" in line
    assert "found as /usr/src/ofa_kernel/default" in line
    # The name of the directory says so as well.
    (tree / "configure.mk.kernel").unlink()
    assert "is for Linux 6.1.0-other" in refused(make(f"IB_CORE={kernel.ib_core}"))
    # Whose ib_core is the kernel's own does not care for it.
    own = dataclasses.replace(kernel, vendor=None, ofed=None)
    assert built_for(make(f"IB_CORE={own.ib_core}")).startswith("in-tree ")
    # And the link may lead nowhere.
    shutil.rmtree(tree)
    assert "leads to x86_64/6.1.0-other, which is missing" in refused(
        make(f"IB_CORE={kernel.ib_core}")
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("compat/config.h", None, "is not configured for a kernel (compat/config.h is missing)"),
        ("Module.symvers", None, "has no symbols of ib_core (Module.symvers is missing)"),
        ("Module.symvers", "", "has no symbols of ib_core (Module.symvers is empty)"),
        ("Module.symvers", "0x0\tother\ta/b\tEXPORT_SYMBOL\t\n", "(ib_register_client)"),
        ("include/rdma/ib_verbs.h", None, "has no headers of ib_core"),
        ("include/linux/compat-2.6.h", None, "has no compatibility headers"),
        ("configure.mk.kernel", "KVERSION = 6.1.0-other\n", "is for Linux 6.1.0-other"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_incomplete_tree(
    make: Make,
    vendors: dict[str, Kernel],
    tmp_path: Path,
    name: str,
    text: str | None,
    said: str,
    named: bool,
) -> None:
    """A tree that lacks something is an error that names it, whether it was named or found."""
    kernel = vendors[DEVICES]
    where = "ofed" if named else f"ofa_kernel/x86_64/{kernel.release}"
    tree = place(tmp_path, ofed(kernel), where)
    if text is None:
        (tree / name).unlink()
    else:
        (tree / name).write_text(text)
    arguments = [f"OFED_DIR=/usr/src/{where}"] if named else []
    line = refused(make(f"IB_CORE={kernel.ib_core}", *arguments))
    assert f"/usr/src/{where}" in line
    assert said in line


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("it's here", "has a space or a special character"),
        ("a directory", "has a space or a special character"),
        ("nowhere", "is no directory"),
    ],
)
def test_named_badly(
    make: Make, vendors: dict[str, Kernel], tmp_path: Path, path: str, said: str
) -> None:
    """A path that cannot be used is refused."""
    kernel = vendors[DEVICES]
    if path != "nowhere":
        place(tmp_path, ofed(kernel), path)
    line = refused(make(f"IB_CORE={kernel.ib_core}", f"OFED_DIR=/usr/src/{path}"))
    assert said in line


@pytest.mark.parametrize("path", ["../usr-src/ofed", "/usr/src/ofed/", "/usr/src/ofed/../ofed/."])
def test_named_in_other_ways(
    make: Make, vendors: dict[str, Kernel], tmp_path: Path, path: str
) -> None:
    """A relative path and a trailing slash are good enough."""
    kernel = vendors[DEVICES]
    tree = place(tmp_path, ofed(kernel), "ofed")
    expected = tree if path.startswith("..") else Path("/usr/src/ofed")
    assert find(make, kernel, f"OFED_DIR={path}") == f"{expected}"


def test_no_tree(make: Make, vendors: dict[str, Kernel]) -> None:
    """If OFED's ib_core is the one to be loaded, its tree has to be there."""
    kernel = vendors[DEVICES]
    line = refused(make(f"IB_CORE={kernel.ib_core}"))
    assert f"the ib_core of {kernel.release} is {kernel.ib_core}, not the kernel's own" in line
    assert f"/usr/src/ofa_kernel/x86_64/{kernel.release}" in line


def test_tree_but_own_ib_core(
    make: Make, chosen: Kernel, vendors: dict[str, Kernel], tmp_path: Path
) -> None:
    """A tree of OFED does not mean that its ib_core would be loaded: one has to say which."""
    place(tmp_path, ofed(vendors[DEVICES]), f"ofa_kernel/x86_64/{chosen.release}")
    line = refused(make(f"IB_CORE={chosen.ib_core}"))
    assert "would load its own ib_core" in line
    assert "OFED_DIR=none" in line
    # Named, it is still not what would be loaded.
    tree = f"/usr/src/ofa_kernel/x86_64/{chosen.release}"
    line = refused(make(f"IB_CORE={chosen.ib_core}", f"OFED_DIR={tree}"))
    assert "would load its own ib_core" in line


def test_vendor_headers_with_in_tree_symbols(
    make: Make, chosen: Kernel, vendors: dict[str, Kernel], tmp_path: Path
) -> None:
    """Symbols that are not those of the headers stop the build, as far as they tell."""
    kernel = vendors[DEVICES]
    tree = place(tmp_path, ofed(kernel), "ofed")
    symvers = chosen.sources / f"linux-headers-{chosen.release}/Module.symvers"
    arguments = [f"IB_CORE={kernel.ib_core}", "OFED_DIR=/usr/src/ofed"]
    shutil.copy(symvers, tree / "Module.symvers")
    assert "is the kernel's own, not OFED's" in refused(make(*arguments))
    lines = symvers.read_text().splitlines(keepends=True)
    (tree / "Module.symvers").write_text("".join(line for line in lines if "infiniband/" in line))
    line = refused(make(*arguments))
    assert "is of another build than" in line
    assert "ib_vendor_version" in line


def test_in_tree_headers_with_vendor_symbols(
    make: Make, chosen: Kernel, vendors: dict[str, Kernel], tmp_path: Path
) -> None:
    """Symbols of another ib_core than the kernel's stop the build without its headers."""
    place(tmp_path, ofed(vendors[DEVICES]), "ofed")
    line = refused(
        make(
            f"IB_CORE={chosen.ib_core}",
            "OFED_DIR=none",
            "KBUILD_EXTRA_SYMBOLS=/usr/src/ofed/Module.symvers",
        )
    )
    assert "the headers of ib_core are the kernel's own" in line
    assert "from KBUILD_EXTRA_SYMBOLS" in line


def test_symbols_of_others(make: Make, vendors: dict[str, Kernel], tmp_path: Path) -> None:
    """Symbols of other modules may be given, and do not come before OFED's."""
    kernel = vendors[DEVICES]
    place(tmp_path, ofed(kernel), "ofed")
    other = place(tmp_path, ofed(kernel), "other")
    line = built_for(
        make(
            f"IB_CORE={kernel.ib_core}",
            "OFED_DIR=/usr/src/ofed",
            f"KBUILD_EXTRA_SYMBOLS=/usr/src/{other.name}/Module.symvers",
        )
    )
    assert "symbols /usr/src/ofed/Module.symvers" in line


@pytest.mark.parametrize("tree", ["ofed", "none"])
def test_headers_of_somebody_else(
    make: Make, vendors: dict[str, Kernel], tmp_path: Path, tree: str
) -> None:
    """Headers that were not meant, but were read, stop the build."""
    kernel = vendors[DEVICES]
    place(tmp_path, ofed(kernel), "ofed")
    other = place(tmp_path, ofed(kernel), "other")
    # Of two such headers the first one would keep the second from including the kernel's.
    (other / "include/linux/slab.h").unlink()
    own = dataclasses.replace(kernel, vendor=None, ofed=None)
    line = refused(
        make(
            f"IB_CORE={own.ib_core if tree == 'none' else kernel.ib_core}",
            f"OFED_DIR={'none' if tree == 'none' else '/usr/src/ofed'}",
            "NOSTDINC_FLAGS=-nostdinc -I/usr/src/other/include -I/usr/src/other/include/uapi",
        )
    )
    assert f"were read from /usr/src/{other.name}/include, not from" in line


def test_types_of_another_build(make: Make, vendors: dict[str, Kernel], tmp_path: Path) -> None:
    """Headers that do not lay out structures as the very ib_core does stop the build."""
    place(tmp_path, ofed(vendors[DEVICES]), "ofed")
    line = refused(make(f"IB_CORE={vendors[CLIENTS].ib_core}", "OFED_DIR=/usr/src/ofed"))
    assert "ib_client is at 0 with size 104 in the headers, and at 0 with size 112 in " in line


def test_replaced_in_place(
    make: Make, vendors: dict[str, Kernel], clone: Path, tmp_path: Path
) -> None:
    """A tree that is replaced by one with older dates is noticed."""
    tree = place(tmp_path, ofed(vendors[DEVICES]), "ofed")
    built_for(make(f"IB_CORE={vendors[DEVICES].ib_core}", "OFED_DIR=/usr/src/ofed"))
    before = (clone / "layout.s").read_text()
    shutil.rmtree(tree)
    place(tmp_path, ofed(vendors[CLIENTS]), "ofed")
    for file in tree.rglob("*"):
        os.utime(file, (0, 0))
    line = built_for(make(f"IB_CORE={vendors[CLIENTS].ib_core}", "OFED_DIR=/usr/src/ofed"))
    assert f"types as in {vendors[CLIENTS].ib_core}" in line
    assert (clone / "layout.s").read_text() != before
    # Symbols alone, too.
    symvers = tree / "Module.symvers"
    symvers.write_text(symvers.read_text().replace("ib_vendor_version", "ib_vendor_wersion"))
    os.utime(symvers, (0, 0))
    line = refused(make(f"IB_CORE={vendors[CLIENTS].ib_core}", "OFED_DIR=/usr/src/ofed"))
    assert "is of another build than" in line


def test_nothing_to_do(make: Make, chosen: Kernel) -> None:
    """What has not changed is not built again."""
    built_for(make(f"IB_CORE={chosen.ib_core}"))
    again = make(f"IB_CORE={chosen.ib_core}")
    assert again.returncode == 0
    assert not re.search(r"^  [A-Z]", again.stdout + again.stderr, re.MULTILINE), again


def test_headers_behind_links(make: Make, vendors: dict[str, Kernel], tmp_path: Path) -> None:
    """Directories of headers may be links to somewhere else, as Ubuntu's are."""
    kernel = vendors[DEVICES]
    tree = place(tmp_path, ofed(kernel), "ofed")
    (tree / "include/rdma").rename(tmp_path / "usr-src/rdma")
    (tree / "include/rdma").symlink_to("../../rdma")
    built_for(make(f"IB_CORE={kernel.ib_core}", "OFED_DIR=/usr/src/ofed"))


def test_compressed_ib_core(make: Make, chosen: Kernel, tmp_path: Path) -> None:
    """The ib_core to compare with may be compressed, as distributions have it."""
    compressed = tmp_path / "ib_core.ko.xz"
    with compressed.open("wb") as file:
        subprocess.run(["xz", "-c", chosen.ib_core], stdout=file, check=True)
    assert f"types as in {compressed}" in built_for(make(f"IB_CORE={compressed}"))


def test_without_bpftool(make: Make, chosen: Kernel, tmp_path: Path) -> None:
    """Where the types cannot be compared, the build says so, and does it as soon as it can."""
    arguments = [f"IB_CORE={chosen.ib_core}", "BPFTOOL=some-bpftool"]
    line = built_for(make(*arguments))
    assert f"types not compared with {chosen.ib_core}: some-bpftool is not installed" in line
    tool = tmp_path / "tools/some-bpftool"
    tool.parent.mkdir()
    tool.symlink_to("/usr/bin/true")
    line = built_for(make(*arguments))
    assert f"types not compared with {chosen.ib_core}: some-bpftool cannot read" in line
    tool.unlink()
    tool.symlink_to("/usr/sbin/bpftool")
    other = tool.with_name("other-bpftool")
    other.symlink_to("/usr/sbin/bpftool")
    line = built_for(make(f"IB_CORE={chosen.ib_core}", "BPFTOOL=other-bpftool"))
    assert f"types as in {chosen.ib_core}" in line


def test_ofed_without_bpftool(make: Make, vendors: dict[str, Kernel], tmp_path: Path) -> None:
    """OFED's headers are not believed to be those of its ib_core, unless one insists."""
    kernel = vendors[DEVICES]
    place(tmp_path, ofed(kernel), "ofed")
    arguments = [f"IB_CORE={kernel.ib_core}", "OFED_DIR=/usr/src/ofed"]
    assert "install bpftool" in refused(make(*arguments, "BPFTOOL=no-bpftool"))
    line = built_for(make(*arguments, "BPFTOOL=none"))
    assert f"types not compared with {kernel.ib_core}" in line


@pytest.mark.parametrize("ib_core", ["none", "(builtin)"])
def test_no_file_to_compare_with(make: Make, ib_core: str) -> None:
    """There may be no ib_core.ko: on another machine, or because it is part of the kernel."""
    line = built_for(make(f"IB_CORE={ib_core}"))
    assert line.startswith("built-in " if ib_core == "(builtin)" else "in-tree ")
    assert "build-id unknown" in line


def test_not_an_ib_core(make: Make, chosen: Kernel, tmp_path: Path) -> None:
    """What is named as ib_core and is none stops the build, rather than the comparison."""
    file = tmp_path / "ib_core.ko"
    assert "is no file" in refused(make(f"IB_CORE={file}"))
    for text in ("", "text"):
        file.write_text(text)
        assert "is no kernel module" in refused(make(f"IB_CORE={file}"))
    shutil.copy(chosen.ib_core.with_name("ib_uverbs.ko"), file)
    assert "finds no ib_register_client" in refused(make(f"IB_CORE={file}"))


def test_ib_core_of_another_kernel(make: Make, chosen: Kernel, tmp_path: Path) -> None:
    """An ib_core of another kernel than the one that is built for is refused."""
    other = f"{chosen.release[:-1]}X"
    file = tmp_path / "ib_core.ko"
    file.write_bytes(
        chosen.ib_core.read_bytes().replace(
            f"vermagic={chosen.release}".encode(), f"vermagic={other}".encode()
        )
    )
    line = refused(make(f"IB_CORE={file}"))
    assert f"is for Linux {other}, not for {chosen.release}" in line


@pytest.mark.parametrize("name", ["a directory", "it's here", "a$b"])
def test_ib_core_named_badly(
    make: Make, chosen: Kernel, clone: Path, tmp_path: Path, name: str
) -> None:
    """A path that Kbuild would take for something else is refused, and nothing is overwritten."""
    file = tmp_path / name / "ib_core.ko"
    file.parent.mkdir()
    shutil.copy(chosen.ib_core, file)
    makefile = (clone / "Makefile").read_bytes()
    result = make(f"IB_CORE={file}")
    assert result.returncode != 0
    assert "has a space or a special character" in result.stderr or "is no file" in result.stderr
    assert (clone / "Makefile").read_bytes() == makefile


def test_ofed_and_built_in(make: Make, vendors: dict[str, Kernel], tmp_path: Path) -> None:
    """OFED's headers do not go with an ib_core that is part of the kernel."""
    place(tmp_path, ofed(vendors[CLIENTS]), "ofed")
    line = refused(make("IB_CORE=(builtin)", "OFED_DIR=/usr/src/ofed"))
    assert "has its own ib_core built in" in line


def test_modinfo_says_which(
    make: Make, chosen: Kernel, vendors: dict[str, Kernel], tmp_path: Path
) -> None:
    """Without IB_CORE=, the ib_core is the one that modprobe would load."""
    tool = tmp_path / "tools/modinfo"
    tool.parent.mkdir()
    tool.touch(mode=0o755)

    def loaded(ib_core: Path) -> None:
        tool.write_text(
            "#!/bin/sh\n"
            f'case $* in "-k {chosen.release} -n ib_core") echo {ib_core} ;;\n'
            '*) exec /usr/sbin/modinfo "$@" ;; esac\n'
        )

    loaded(chosen.ib_core)
    assert f"types as in {chosen.ib_core}" in built_for(make())
    vendors_own = vendors[DEVICES].ib_core
    loaded(vendors_own)
    assert f"is {vendors_own}, not the kernel's own" in refused(make())
    # Whoever wants the kernel's own all the same gets it.
    assert "no ib_core.ko to compare with" in built_for(make("OFED_DIR=none"))
    place(tmp_path, ofed(vendors[DEVICES]), f"ofa_kernel/x86_64/{chosen.release}")
    assert f"types as in {vendors_own}" in built_for(make())


def test_weak_updates(
    make: Make, chosen: Kernel, vendors: dict[str, Kernel], tmp_path: Path
) -> None:
    """A module that was made for a kernel that is compatible goes with the tree for that one."""
    tree = place(tmp_path, ofed(vendors[DEVICES]), "ofa_kernel/x86_64/7.3.1-other")
    (tree / "configure.mk.kernel").write_text("KVERSION=7.3.1-other\n")
    other = tmp_path / "lib/modules/7.3.1-other/extra/ib_core.ko"
    other.parent.mkdir(parents=True)
    shutil.copy(vendors[DEVICES].ib_core, other)
    link = tmp_path / f"lib/modules/{chosen.release}/weak-updates/ib_core.ko"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../7.3.1-other/extra/ib_core.ko")
    line = built_for(make(f"IB_CORE={link}"))
    assert "headers /usr/src/ofa_kernel/x86_64/7.3.1-other/include" in line


def test_without_make(
    root: BuildRoot, chosen: Kernel, vendors: dict[str, Kernel], clone: Path
) -> None:
    """Kbuild alone, which does not look for OFED, does not build for the wrong ib_core either."""
    kernel = vendors[DEVICES]
    command = ["make", "-C", chosen.headers, f"M={clone}", f"IB_CORE={kernel.ib_core}", "modules"]
    result = subprocess.run(
        root.command(
            command, writable=[clone], readable=[chosen.path.parent], sources=[chosen.sources]
        ),
        capture_output=True,
        text=True,
    )
    assert "build with 'make', which finds its headers" in refused(result)


def test_bindgen_and_compiler_differ(make: Make, clone: Path) -> None:
    """Where bindgen lays out a structure in another way than the C compiler, the build stops."""
    layout = clone / "layout.c"
    text = layout.read_text()
    assert text.count("\tMEMBER(ib_qp_init_attr, qp_type);\n") == 1
    layout.write_text(
        text.replace(
            "\tMEMBER(ib_qp_init_attr, qp_type);\n",
            '\tLAYOUT("member", ib_qp_init_attr.qp_type, 8, 4);\n',
        )
    )
    result = make("OFED_DIR=none")
    assert result.returncode != 0
    assert "bindgen and the C compiler lay out ib_qp_init_attr.qp_type differently" in result.stderr


def test_every_member_is_compared(make: Make, chosen: Kernel, ko: Path, clone: Path) -> None:
    """The Rust code touches no member that the comparison leaves out.

    Every other member of the bindings gets another name; the code still compiles.
    """
    listed = set(
        re.findall(r"MEMBER\((\w+), (?:\w+\.)?(\w+)\)", (PROJECT / "layout.c").read_text())
    )
    assert ("ib_client", "add") in listed
    renamed = []
    structure = ""
    for line in (ko.parent / "bindings_generated.rs").read_text().splitlines():
        if found := re.match(r"pub (?:struct|union) (\w+)", line):
            structure = found[1]
        if found := re.match(r"    pub (r#)?([a-z]\w*):", line):
            outer = structure.partition("__bindgen_ty")[0]
            if (outer, found[2].rstrip("_")) not in listed:
                line = line.replace(f"pub {found[1] or ''}{found[2]}:", f"pub not_{found[2]}:")
        renamed.append(line)
    bindings = clone / "renamed.rs"
    bindings.write_text("\n".join(renamed))
    assert "pub not_" in bindings.read_text()
    result = make("OFED_DIR=none", f"KRDMA_SMOKE_BINDINGS={bindings}")
    assert result.returncode == 0, result.stderr
