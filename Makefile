# SPDX-License-Identifier: GPL-2.0
#
# What a person types; 'make help' lists it. What Kbuild reads is in Kbuild.

KVER ?= $(shell uname -r)
KDIR ?= /lib/modules/$(KVER)/build

# Kbuild takes its tools from the command line only.
KBUILD := $(MAKE) -C $(KDIR) M=$(CURDIR) $(foreach tool,RUSTC BINDGEN,$(if $($(tool)),$(tool)=$($(tool))))
SCRIPT := scripts/host-tools.sh && python3 -B scripts

# Prints what Kbuild has to be told of the ib_core to build for.
FIND := python3 -B scripts/ib_core.py find "$$KVER" "$$KDIR"

# Quoted by the shell, whatever is in them.
modules sign clean headers: export KVER := $(KVER)
modules sign clean headers: export KDIR := $(KDIR)

.PHONY: all
all: modules

.PHONY: modules
modules:
	@scripts/preflight.sh "$$KVER" "$$KDIR"
	+@ib_core=$$($(FIND)) && $(KBUILD) $$ib_core modules

.PHONY: sign
sign:
	@scripts/sign.sh krdma_smoke.ko "$$KVER" "$$KDIR"

# An empty DEVICE stands for every one, none for the default. PARAMETERS are words.
.PHONY: load
load:
	@scripts/load.sh krdma_smoke.ko $${DEVICE+"rdma_dev_name=$$DEVICE"} $$PARAMETERS

.PHONY: modules_install
modules_install:
	+$(KBUILD) modules_install

.PHONY: install
install: modules_install

.PHONY: clean
clean:
	@rm -rf build rust-project.json
	+@if [ -e "$$KDIR/Makefile" ]; then $(KBUILD) clean; fi

.PHONY: headers
headers:
	@$(SCRIPT)/kernel.py headers "$$KVER"

.PHONY: smoke
smoke:
	@$(SCRIPT)/smoke.py

.PHONY: test
test:
	@$(SCRIPT)/venv.py pytest --numprocesses=auto --dist=worksteal $(TESTS)

.PHONY: lab
lab:
	@$(SCRIPT)/venv.py pytest --numprocesses=auto --dist=worksteal --lab $(TESTS)

.PHONY: matrix
matrix:
	@$(SCRIPT)/matrix.py

.PHONY: bench
bench:
	@$(SCRIPT)/venv.py scripts/bench.py

.PHONY: check
check:
	@$(SCRIPT)/venv.py scripts/check.py

.PHONY: rust-analyzer
rust-analyzer:
	@$(SCRIPT)/rust_analyzer.py

.PHONY: update
update:
	@$(SCRIPT)/kernel.py update

.PHONY: distclean
distclean: clean
	@python3 -B scripts/cache.py clean

.PHONY: help
help:
	@echo 'On any machine, in QEMU, without RDMA hardware:'
	@echo '  smoke            show the module at work on a Debian kernel'
	@echo '  matrix           smoke on every kind of kernel (ROWS="sid arm64": on some)'
	@echo '  test             run every scenario, each in a virtual machine of its own'
	@echo '  lab              the same on kernels that look for errors, and what takes long'
	@echo '  bench            measure it, beside C and perftest, and as it grows (PARTS="c user": some)'
	@echo '  check            formatting and lints, of Rust, shell and Python'
	@echo '  update           look for newer kernels in Debian'
	@echo '  rust-analyzer    write rust-project.json for an editor'
	@echo '  distclean        clean, and empty the cache of downloads and builds'
	@echo
	@echo 'For a kernel of your own, by default the running one:'
	@echo '  all, modules     build krdma_smoke.ko'
	@echo '  sign             sign it for Secure Boot (KEY=, CERT=)'
	@echo '  modules_install  install it, as Kbuild does'
	@echo '  load             load it for DEVICE=, if it fits the ib_core that is running'
	@echo '  clean            remove what was built here'
	@echo '  headers          add the Rust crates to the headers of a Debian kernel (KVER=)'
	@echo
	@echo 'Variables:'
	@echo '  KVER=RELEASE     kernel of your own to build for ($(KVER))'
	@echo '  KDIR=DIRECTORY   its build tree (/lib/modules/KVER/build)'
	@echo '  OFED_DIR=DIR     tree of MLNX_OFED or DOCA-OFED to build with; none: the kernel itself'
	@echo '  IB_CORE=FILE     the ib_core.ko that it is to run with (what modprobe would load)'
	@echo '  PARAMETERS="..." what else to load it with, such as traffic=1000 (modinfo -p lists them)'
	@echo '  KEY=FILE         private key to sign with, or a PKCS#11 URI; CERT=FILE: its certificate'
	@echo '  KERNEL=VERSION   Debian kernel for smoke, test and bench (the newest with Rust)'
	@echo '  ACCEL=kvm        hardware virtualisation for smoke (tcg, software emulation)'
	@echo '  MIRROR=URL       Debian mirror (that of this machine, else the default)'
	@echo '  TESTS="ARGS"     arguments for pytest, such as "-k rename"'
