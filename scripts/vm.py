# SPDX-License-Identifier: GPL-2.0
"""Runs a kernel in QEMU and scripts in it, and watches its log.

The guest is nothing but an initramfs. Scripts and their results travel over a virtio port, the
kernel log over the serial console, so that neither can be taken for the other.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from buildroot import BuildRoot
from kernel import Kernel
from report import Failure
from uefi import Firmware

_INIT = Path(__file__).parent / "guest-init.sh"

# The guest's programs, by their paths.
_STATIC = "/usr/bin/busybox"
_DYNAMIC = ("/usr/bin/dash", "/usr/bin/kmod", "/usr/bin/ip", "/usr/bin/rdma")

# A line of the kernel log that no run may have.
SPLAT = re.compile(
    r"kernel BUG at|WARNING:|\bBUG\b|Oops:|Kernel panic|general protection fault|Internal error"
    r"|possible recursive locking|circular locking|inconsistent lock state|suspicious RCU"
    r"|scheduling while atomic|sleeping function called|refcount_t:|blocked for more than"
    r"|UBSAN:|KASAN:|KCSAN:|unreferenced object|INFO: trying to register"
    r"|rust_kernel: panicked|rust_kernel:.*panic"
)

# How long a guest may be silent before it is taken for dead, in seconds. Software emulation on a
# busy machine is slow; nothing is concluded from a run being slow.
_SILENCE = 300.0

# A guest that is silent for so long while it boots, in seconds, is stuck: Linux does not expect a
# processor to stand still, as it does when the host is busy. One that does not come up is booted
# anew: nothing of ours has run.
_BOOT_SILENCE = 60.0
_BOOT_ATTEMPTS = 3

# How long a guest that is stuck may be silent when it is asked what its processors do, in seconds.
_LAST_WORDS = 30.0

# With hardware virtualisation the guest is up within a few seconds, or it will not come up.
_KVM_BOOT = 15.0


class GuestDied(Failure):
    """The guest does not answer any more."""


@dataclass(frozen=True)
class Result:
    """What came of a script in the guest."""

    script: str
    status: int
    output: str
    log: tuple[str, ...]
    """What the kernel logged meanwhile, a line each, without times."""


class Vm:
    """A virtual machine, from its boot to its end; use it in a `with` block."""

    def __init__(
        self,
        root: BuildRoot,
        kernel: Kernel,
        files: Mapping[str, Path],
        *,
        log: Path,
        accelerator: str = "tcg",
        processors: int = 2,
        memory: str = "512M",
        firmware: Firmware | None = None,
        parameters: Sequence[str] = (),
        options: Sequence[str] = (),
        directories: Sequence[Path] = (),
        programs: Path | None = None,
    ) -> None:
        """Prepare a guest with `files` (name there: file here); `log` takes its kernel log.

        `firmware` is what it starts with in place of QEMU's BIOS. `parameters` are more of its
        kernel's, `options` more of QEMU's, which may write to the `directories`. `programs` is a
        tree of more programs, as below `/`.
        """
        self._root = root
        self._arch = root.recipe.arch
        self._kernel = kernel
        self._files = files
        self._log_path = log
        self._accelerator = accelerator
        self._processors = processors
        self._memory = memory
        self._firmware = firmware
        self._parameters = parameters
        self._options = options
        self._directories = directories
        self._programs = programs
        self._lines: list[str] = []
        self._partial = b""
        self._answer = b""
        self._scripts = 0
        self._stuck = False
        self.ended = False
        """Whether it has gone down by itself, as it was told to."""

    def __enter__(self) -> Self:
        for attempt in range(1, _BOOT_ATTEMPTS + 1):
            self._directory = Path(tempfile.mkdtemp(prefix="krdma_smoke-vm-"))
            self._lines.clear()
            self._partial = self._answer = b""
            self._stuck = False
            try:
                self._start()
                self._wait_for_boot()
                break
            except GuestDied:
                self._stop()
                # A kernel that complains is not to be booted until it does not.
                if attempt == _BOOT_ATTEMPTS or self.splats():
                    raise
            except BaseException:
                self._stop()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if value and self._stuck:
                value.add_note(self._interrupt())
        finally:
            self._stop()

    @property
    def log(self) -> tuple[str, ...]:
        """What the kernel has logged so far, a line each, without times."""
        return tuple(self._lines)

    def splats(self) -> list[str]:
        """Return the lines of the kernel log that say that something is wrong."""
        return [line for line in self._lines if SPLAT.search(line)]

    def run(self, script: str) -> Result:
        """Run a shell script in the guest and wait for its end."""
        self._scripts += 1
        start = len(self._lines)
        end = f"vm: end of script {self._scripts}"
        self._send(script)
        status, _, output = self._receive(_SILENCE).partition(" ")
        while end not in self._lines[start:]:
            self._wait(_SILENCE)
        stop = self._lines.index(end, start)
        log = tuple(self._lines[start:stop])
        return Result(script, int(status), base64.b64decode(output).decode(errors="replace"), log)

    def output(self, script: str) -> str:
        """Run a script that has to work; return what it prints."""
        result = self.run(f"set -e; {script}")
        if result.status != 0:
            raise Failure(f"the guest fails: {result.output.strip()} ({script.strip()})")
        return result.output

    def end(self, script: str) -> None:
        """Run a shell script with which the guest goes down by itself, and wait for that."""
        self._send(script)
        try:
            while True:
                self._wait(_SILENCE)
        except GuestDied:
            if self._stuck:
                raise
        if status := self._qemu.wait():
            raise Failure(f"QEMU ended with status {status}: {self._last_words()}")
        self.ended = True

    def _send(self, script: str) -> None:
        self._control.sendall(base64.b64encode(script.encode("utf-8", "surrogateescape")) + b"\n")

    def _libraries(self) -> set[str]:
        """Return the paths of what the guest's dynamic programs are linked with.

        They are read, not run: they may be of another architecture.
        """
        found: set[str] = set()
        files = set(_DYNAMIC)
        if self._programs:
            usr = self._programs / "usr"
            own = [*usr.glob("bin/*"), *usr.rglob("*.so*")]
            files |= {
                f"/{path.relative_to(self._programs)}" for path in own if not path.is_symlink()
            }
        readable = [self._root.guest, *([self._programs] if self._programs else [])]
        while files:
            command: list[str | Path] = ["readelf", "--wide", "--program-headers", "--dynamic"]
            command += [self._origin(file) for file in files]
            text = self._root.output(command, readable=readable)
            files = {f"/usr{path}" for path in re.findall(r"program interpreter: (.*)\]", text)}
            for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
                files.add(f"/usr/lib/{self._arch.triplet}/{name}")
            files -= found
            found |= files
        return found

    def _origin(self, name: str) -> Path:
        """Return where here a file is that is to be in the guest."""
        trees = [self._programs] if self._programs else []
        paths = [tree / name.lstrip("/") for tree in (*trees, self._root.guest)]
        return next((path for path in paths if path.exists()), paths[-1])

    def _archive(self) -> Path:
        """Make the guest's initramfs."""
        tree = self._directory / "tree"
        shutil.copytree(self._kernel.guest, tree, symlinks=True)
        if self._programs:
            shutil.copytree(self._programs, tree, symlinks=True, dirs_exist_ok=True)
        for name in ("dev", "proc", "sys", "tmp", "run", "etc", "usr/bin", "usr/lib64"):
            (tree / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "sbin"):
            (tree / name).symlink_to("usr/bin")
        (tree / "lib64").symlink_to("usr/lib64")
        for name in (_STATIC, *_DYNAMIC, *self._libraries()):
            target = tree / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self._origin(name), target)
        # busybox, which takes all other names, leaves alone what is there.
        (tree / "usr/bin/sh").symlink_to("dash")
        for name in ("insmod", "lsmod", "modinfo", "modprobe", "rmmod"):
            (tree / "usr/bin" / name).symlink_to("kmod")
        for name, origin in {"init": _INIT, **self._files}.items():
            shutil.copy(origin, tree / name.lstrip("/"))
        (tree / "init").chmod(0o755)
        archive = self._directory / "initramfs.cpio"
        script = 'cd "$1" && find . | cpio -o -H newc -R 0:0 --quiet >"$2"'
        command: list[str | Path] = ["sh", "-c", script, "sh", tree, archive]
        self._root.output(command, writable=[self._directory])
        shutil.rmtree(tree)
        return archive

    def _start(self) -> None:
        self._control, guest = socket.socketpair()
        self._monitor, monitor = socket.socketpair()
        kvm = self._accelerator == "kvm"
        if kvm and not os.access("/dev/kvm", os.R_OK | os.W_OK):
            raise Failure("ACCEL=kvm: /dev/kvm is missing or not yours to use; leave ACCEL out")
        parameters = [
            *(f"console={self._arch.console}", "ignore_loglevel", "printk.devkmsg=on", "panic=-1"),
            # What only says that the emulation is slow.
            *("nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1"),
            # What a guest that is stuck says when it is interrupted.
            *("unknown_nmi_panic", "panic_sys_info=all_bt,timers"),
            *self._arch.parameters,
            *self._parameters,
        ]
        command: list[str | Path] = [
            *(*self._arch.qemu, "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-accel", self._accelerator),
            *("-cpu", "host" if kvm else self._arch.cpu),
            # One socket: what processors of several say of the time is not trusted, and the workers
            # of unbound work items stay with those that share a cache.
            *("-smp", f"cores={self._processors}", "-m", self._memory),
            *("-kernel", self._kernel.image, "-initrd", self._archive()),
            *("-append", " ".join(parameters)),
            *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=control,fd={guest.fileno()}"),
            *("-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control"),
            *("-chardev", f"socket,id=monitor,fd={monitor.fileno()}", "-mon", "chardev=monitor"),
            *self._options,
        ]
        readable, writable = [self._directory, self._kernel.path], [*self._directories]
        if self._firmware:
            variables = self._directory / "variables.fd"
            variables.write_bytes(self._firmware.variables)
            command += [
                # Only the firmware, in system management mode, can change what is trusted.
                *("-machine", "q35,smm=on"),
                *("-global", "driver=cfi.pflash01,property=secure,value=on"),
                # A kernel that is not trusted is not started in another way.
                *("-fw_cfg", "name=opt/org.tianocore/EnableLegacyLoader,string=no"),
                *("-drive", f"if=pflash,format=raw,readonly=on,file={self._firmware.code}"),
                *("-drive", f"if=pflash,format=raw,file={variables}"),
            ]
            readable.append(self._firmware.code)
            writable.append(variables)
        self._errors = (self._directory / "qemu.log").open("w+b")
        self._qemu = subprocess.Popen(
            self._root.command(
                command,
                readable=readable,
                writable=writable,
                devices=["/dev/kvm"] if kvm else [],
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=[guest.fileno(), monitor.fileno()],
        )
        guest.close()
        monitor.close()
        assert self._qemu.stdout is not None
        self._console = self._qemu.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._console, selectors.EVENT_READ)

    def _wait_for_boot(self) -> None:
        """Wait until the guest's init says that it is there."""
        if self._accelerator != "kvm":
            self._receive(_BOOT_SILENCE)
            return
        deadline = time.monotonic() + _KVM_BOOT
        try:
            while b"\n" not in self._answer:
                self._wait(max(0.0, deadline - time.monotonic()))
        except GuestDied as failure:
            raise Failure(
                f"ACCEL=kvm: the guest did not come up ({failure}); leave ACCEL out"
            ) from failure
        self._receive(0.0)

    def _receive(self, patience: float) -> str:
        """Return the guest's next answer; `patience` is how long it may be silent, in seconds."""
        while b"\n" not in self._answer:
            self._wait(patience)
        line, _, self._answer = self._answer.partition(b"\n")
        return line.decode()

    def _wait(self, patience: float) -> None:
        """Take in whatever comes next from the guest."""
        ready = self._selector.select(patience)
        if not ready:
            self._stuck = True
            raise GuestDied(f"it was silent for {patience:.0f} s")
        for key, _ in ready:
            if key.fileobj is self._control:
                data = self._control.recv(1 << 16)
                self._answer += data
            else:
                data = os.read(self._console.fileno(), 1 << 16)
                self._take_log(data)
            if not data:
                self._take_log(self._console.read())
                raise GuestDied(self._last_words())

    def _interrupt(self) -> str:
        """Have a guest that is stuck panic; return what its kernel says of its processors."""
        start = len(self._lines)
        self._monitor.sendall(b"nmi\n")
        with contextlib.suppress(GuestDied):
            while True:
                self._wait(_LAST_WORDS)
        return "\n".join(self._lines[start:])

    def _take_log(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="backslashreplace").rstrip("\r")
            self._lines.append(re.sub(r"^\[ *\d+\.\d+\] ", "", text))

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return (said or self.splats() or self._lines or ["it ended without a word"])[-1]

    def _stop(self) -> None:
        """End the guest and keep its log."""
        if hasattr(self, "_qemu"):
            # The guest has no disk that would want a shutdown.
            self._qemu.kill()
            rest, _ = self._qemu.communicate()
            self._take_log(rest + b"\n")
            self._errors.close()
            self._selector.close()
        self._control.close()
        self._monitor.close()
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_path.write_text("".join(f"{line}\n" for line in self._lines))
        shutil.rmtree(self._directory)
