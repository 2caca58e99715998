# SPDX-License-Identifier: GPL-2.0
"""Signing for Secure Boot: what `make sign` makes, and what a kernel makes of that."""

from __future__ import annotations

import lzma
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import uefi
from buildroot import BuildRoot
from guest import EXIT, RETURNED, Guest, init, said, says, taken
from kernel import Kernel
from module import PROJECT

# What a signed file ends in.
MARKER = b"~Module signature appended~\n"


@dataclass(frozen=True)
class Key:
    """A private key with its certificate."""

    key: Path
    cert: Path


@pytest.fixture
def new_key(root: BuildRoot, tmp_path: Path) -> Callable[..., Key]:
    """Return a function that makes a key, as the README says."""

    def make(name: str, *options: str) -> Key:
        key, cert = tmp_path / f"{name}.key", tmp_path / f"{name}.der"
        root.output(
            [
                *("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-days", "36500"),
                *("-subj", f"/CN={name}/", *(options or ("-noenc",))),
                *("-addext", "extendedKeyUsage=1.3.6.1.4.1.2312.16.1.2"),
                *("-keyout", key, "-outform", "DER", "-out", cert),
            ],
            writable=[tmp_path],
        )
        return Key(key, cert)

    return make


class Workshop:
    """A clone with a module that was built there, to be signed."""

    def __init__(self, root: BuildRoot, chosen: Kernel, clone: Path) -> None:
        self._root = root
        self._kernel = chosen
        self._clone = clone
        self.ko = clone / "krdma_smoke.ko"

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run make for the kernel."""
        settings = [f"{name}={value}" for name, value in environment.items()]
        command = ["env", *settings, "make", "-C", f"{self._clone}"]
        command += [f"KVER={self._kernel.release}", f"KDIR={self._kernel.headers}", *arguments]
        return subprocess.run(
            self._root.command(
                command, writable=[self._clone.parent], sources=[self._kernel.sources]
            ),
            capture_output=True,
            text=True,
        )

    def sign(self, key: Key, **environment: str) -> str:
        """Sign the module and return what is said of that."""
        result = self.make("sign", f"KEY={key.key}", f"CERT={key.cert}", **environment)
        assert result.returncode == 0, result
        assert result.stderr == ""
        return result.stdout

    def refuses(self, *arguments: str, **environment: str) -> str:
        """Sign in vain: return the one line that says why; the module is as it was."""
        before = self.ko.read_bytes() if self.ko.exists() else None
        result = self.make("sign", *arguments, **environment)
        assert result.returncode != 0
        (line,) = (line for line in result.stderr.splitlines() if not line.startswith("make"))
        assert line.startswith("sign: ")
        assert (self.ko.read_bytes() if self.ko.exists() else None) == before
        assert not list(self._clone.glob("*.tmp*"))
        return line


@pytest.fixture
def workshop(root: BuildRoot, chosen: Kernel, clone: Path, ko: Path) -> Workshop:
    """Return a clone with the finished module in it."""
    shutil.copy(ko, clone)
    return Workshop(root, chosen, clone)


def test_secure_boot(
    root: BuildRoot,
    chosen: Kernel,
    ko: Path,
    workshop: Workshop,
    new_key: Callable[..., Key],
    tmp_path: Path,
) -> None:
    """Under Secure Boot a module that was signed by an enrolled key is loaded, and no other."""
    enrolled = new_key("enrolled")
    modules = {"unsigned.ko": ko}
    for name, key in (("stranger.ko", new_key("stranger")), ("signed.ko", enrolled)):
        workshop.sign(key)
        modules[name] = tmp_path / name
        shutil.copy(workshop.ko, modules[name])
    signed = modules["signed.ko"].read_bytes()
    altered = signed.replace(b"resource smoke success", b"resource smoke SUCCESS")
    assert altered != signed
    modules["altered.ko"] = tmp_path / "altered.ko"
    modules["altered.ko"].write_bytes(altered)

    firmware = uefi.secure_boot(root, chosen, enrolled.cert.read_bytes())
    log = PROJECT / "build/tests/secure-boot.log"
    with Guest(root, chosen, modules, log=log, firmware=firmware) as guest:
        assert "integrity: Loading X.509 certificate: UEFI:MokListRT" in guest.log
        # Secure Boot has set what `module.sig_enforce=1` sets.
        assert guest.do("cat /sys/module/module/parameters/sig_enforce").output == "Y\n"
        # These modules are Debian's, who has signed them.
        guest.add("rxe0")
        for name, lines in (
            ("unsigned.ko", ("Loading of unsigned module is rejected",)),
            ("stranger.ko", ("Loading of module with unavailable key is rejected",)),
            ("altered.ko", ()),
        ):
            refused = guest.run(f"insmod /{name} rdma_dev_name=rxe0")
            assert refused.status != 0
            assert "Key was rejected by service" in refused.output
            assert refused.log == lines
        loaded = guest.do("insmod /signed.ko rdma_dev_name=rxe0")
        assert says(loaded, init("rxe0") + taken("rxe0")), said(loaded)
        assert not [line for line in loaded.log if "verification failed" in line]
        assert says(guest.unload(), [*EXIT, *RETURNED])
        assert not guest.splats()


def test_signing_twice(root: BuildRoot, workshop: Workshop, new_key: Callable[..., Key]) -> None:
    """A signature takes the place of the one before, and the module stays what it was."""
    unsigned = workshop.ko.read_bytes()
    assert "in place of" not in workshop.sign(new_key("first"))
    second = new_key("second")
    assert "in place of the signature that it had" in workshop.sign(second)
    signed = workshop.ko.read_bytes()
    assert signed.startswith(unsigned)
    assert signed.count(MARKER) == 1
    shown = root.output(["modinfo", "-F", "signer", workshop.ko], readable=[workshop.ko.parent])
    assert shown == "second\n"
    # It is the same as if it had been signed only once.
    workshop.ko.write_bytes(unsigned)
    workshop.sign(second)
    assert workshop.ko.read_bytes() == signed


def test_installed(workshop: Workshop, new_key: Callable[..., Key], ko: Path) -> None:
    """The module that is installed has the signature."""
    shutil.copy(ko.parent / "modules.order", workshop.ko.parent)
    workshop.sign(new_key("signer"))
    target = workshop.ko.parent / "installed"
    result = workshop.make("modules_install", f"INSTALL_MOD_PATH={target}")
    assert result.returncode == 0, result
    (installed,) = target.rglob("krdma_smoke.ko*")
    content = installed.read_bytes()
    if installed.suffix == ".xz":
        content = lzma.decompress(content)
    assert content == workshop.ko.read_bytes()


def test_passphrase(workshop: Workshop, new_key: Callable[..., Key]) -> None:
    """The passphrase of a key is taken from the environment, and asked for if it is not there."""
    key = new_key("signer", "-passout", "pass:a passphrase")
    arguments = (f"KEY={key.key}", f"CERT={key.cert}")
    line = workshop.refuses(*arguments)
    assert "has a passphrase; put it into the environment, as KBUILD_SIGN_PIN" in line
    line = workshop.refuses(*arguments, KBUILD_SIGN_PIN="another")
    assert "KBUILD_SIGN_PIN is not the passphrase of" in line
    workshop.sign(key, KBUILD_SIGN_PIN="a passphrase")
    assert workshop.ko.read_bytes().endswith(MARKER)


def test_wrong_key(workshop: Workshop, new_key: Callable[..., Key]) -> None:
    """What cannot be signed with is told in one line, and the module stays as it was."""
    key, other = new_key("one"), new_key("other")
    for arguments, said_of_it in (
        ((), "which key? Give it and its certificate: make sign KEY="),
        ((f"KEY={key.key}",), "which key? Give it and its certificate: make sign KEY="),
        (("KEY=/nonexistent", f"CERT={key.cert}"), "KEY=/nonexistent is not there"),
        ((f"KEY={key.key}", "CERT=/nonexistent"), "CERT=/nonexistent is not there"),
        ((f"KEY={key.key}", f"CERT={other.cert}"), "do not belong together"),
        ((f"KEY={key.cert}", f"CERT={key.cert}"), "KEY has to be a private key in PEM"),
        ((f"KEY={key.key}", f"CERT={key.key}"), "CERT its certificate in PEM or DER"),
        # There is no such token, but the URI has got to where it is looked for.
        (("KEY=pkcs11:token=none;object=none", f"CERT={key.cert}"), "pkcs11"),
    ):
        assert said_of_it in workshop.refuses(*arguments)


def test_nothing_to_sign(workshop: Workshop, new_key: Callable[..., Key], tmp_path: Path) -> None:
    """Without a module, a sign-file or a kernel with signatures it is said what is missing."""
    key = new_key("signer")
    arguments = (f"KEY={key.key}", f"CERT={key.cert}")
    assert "linux-kbuild-7.0.0" in workshop.refuses(
        *arguments, "KVER=7.0.0-test", "KDIR=/nonexistent"
    )

    kdir = tmp_path / "kdir"
    for name in ("scripts/sign-file", "include/config/auto.conf"):
        (kdir / name).parent.mkdir(parents=True)
        (kdir / name).touch(0o755)
    assert "CONFIG_MODULE_SIG is not set" in workshop.refuses(*arguments, f"KDIR={kdir}")

    whole = workshop.ko.read_bytes()
    workshop.ko.write_bytes(b"\xff" * 12 + MARKER)
    assert "krdma_smoke.ko is damaged" in workshop.refuses(*arguments)
    workshop.ko.write_bytes(whole)

    workshop.ko.unlink()
    assert "krdma_smoke.ko is not there; build it by 'make'" in workshop.refuses(*arguments)
