# SPDX-License-Identifier: MIT OR Apache-2.0
#
# make help tells what there is. The libraries themselves are built by cargo; this file puts
# them where programs look for them, and runs everything that is written in C.

PREFIX     ?= /usr/local
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR     ?= $(PREFIX)/bin
MANDIR     ?= $(PREFIX)/share/man
DOCDIR     ?= $(PREFIX)/share/doc/libdat
# What make install has put there, for make uninstall. Empty, none is written.
MANIFEST   ?= $(DOCDIR)/manifest
DESTDIR    ?=
LDCONFIG   ?= ldconfig
export LDCONFIG
# What make install does with the debug information of libraries and programs: apart, in files of its
# own, which debuggers find; none; or inside, where the tools of packagers want it.
DEBUG_INFO ?= apart
OBJCOPY    ?= objcopy

# Rust is often installed for the user alone.
export PATH := $(PATH):$(HOME)/.cargo/bin

# dev or release: which build of the libraries the C programs run on.
PROFILE    ?= release
CARGO      ?= cargo
CC         ?= cc
CFLAGS     ?= -O2 -g
REPEAT     ?= 1
# make bench and bench-verbs: how often everything is measured, and what (nothing: all).
ROUNDS     ?= 7
ONLY       ?=

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# The file names behind the SONAMEs libdat.so.1 and libdat2.so.2. Distributions have the original
# libraries as libdat.so.1.0.2 and libdat2.so.2.0.0.
LIB1 := libdat.so.1.libdat-$(VERSION)
LIB2 := libdat2.so.2.libdat-$(VERSION)
# Our providers for other registry libraries: what cargo calls libdapl_soft_2.so is libdapl-soft.so.2.
PROVIDERS := soft.1 soft.2 verbs.1 verbs.2
# What cargo builds.
PACKAGES ?= libdat libdat2 dat-tools $(foreach provider,$(PROVIDERS),dapl-$(subst .,-,$(provider)))
TOOLS := dat-info dat-perf dat-top dat-trace

OUT    := build/$(PROFILE)
# Links to what cargo has built, wherever that is.
BUILT  := $(OUT)/cargo
RUST_SOURCES := Cargo.toml Cargo.lock \
	$(shell find src libdat libdat2 providers tools -name '*.rs' -o -name Cargo.toml)

C_FLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror -pthread \
	-Iinclude -Itests-c
C_TESTS := $(basename $(notdir $(wildcard tests-c/t_*.c)))
C_SHARED := tap common connection peer makers moved transfer extended datagrams two_ends traffic srq service cno state left order random random_objects random_calls windows zero_based
C_DEMO := dat_demo demo
C_MODEL := model_agent
C_HEADERS := $(wildcard tests-c/*.h include/dat/*.h include/dat2/*.h)

INSTALL      := install
INSTALL_DATA := install -m 644

.PHONY: FORCE all help deps libs demo check check-long check-rdma-sys lint loom order sim model mutants tsan tsan-programs miri aarch64 aarch64-vm ppc64le s390x riscv64 i686 musl asan fuzz vm-check ctest ctest-bin ctest-order order-bin kill oom dtest dapltest bench bench-crowd bench-verbs bench-verbs-bin bench-profile install stage uninstall deb rpm dist reproducible fresh-check clean
all: libs

help:
	@echo 'make            build libdat.so.1 and libdat2.so.2 (release) into build/release/lib'
	@echo 'make demo       install what is missing, build, and run a C client and server'
	@echo 'make check      install what is missing and run the tests, a bounded part of the slow suites'
	@echo 'make lint       formats, lints and that every configuration compiles: before each commit'
	@echo 'make check-long the same, with every suite whole'
	@echo 'make check-rdma-sys  the layouts of the verbs provider beside the bindings of rdma-sys (needs libclang)'
	@echo 'make ctest      the C test suite (PROFILE=dev|release, VALGRIND=1, KERNEL=4.4, TESTS="t_ep ...")'
	@echo 'make ctest-order  the same on libraries whose threads own their locks after one use'
	@echo 'make kill       kill -9 of either end of a transfer, 1000 times (KILL_ROUNDS=n, KILL_SEED=n)'
	@echo 'make soak       the same for ten minutes on each path (SOAK_SECONDS=n, RUNS=...)'
	@echo 'make oom        let each allocation of memory fail in turn (RUNS="dat2:soft ...")'
	@echo 'make loom       check the interleavings of the lock-free parts'
	@echo 'make order      the C suite with delays at one point after another (POINTS="ep.state ..." TESTS="t_order ...")'
	@echo 'make sim        the soft device on a simulated kernel and network (SIM_RUNS=n, SIM_SEED=n, SIM_PATH=tcp|shm)'
	@echo 'make model      random calls beside a reference model of the rules (MODEL_STEPS=n, MODEL_SEED=n, MODEL_RUNS="dat2:soft ...")'
	@echo 'make mutants    change the library in one place after another: do the tests notice? (needs cargo-mutants)'
	@echo 'make fuzz       search for inputs and peers that do harm, for hours (FUZZ_SECONDS=n for each target, FUZZ_JOBS=n)'
	@echo 'make tsan       tests under ThreadSanitizer'
	@echo 'make tsan-programs  what it reports of programs on the libraries (LONG=1: of a part of the C suite, too)'
	@echo 'make deny       weaknesses and licences of the dependencies (needs cargo-deny)'
	@echo 'make miri       handles and parsers under Miri (needs a nightly compiler with miri)'
	@echo 'make aarch64    unit tests and a part of the C suite on AArch64, under qemu-user'
	@echo 'make aarch64-vm  unit tests and the C suite on AArch64, in a virtual machine: hours (RUNS=..., TESTS="t_ep ...")'
	@echo 'make ppc64le    unit tests, a part of the C suite and the demo on 64-bit POWER, under qemu-user (TESTS="t_ep ...")'
	@echo 'make s390x      the same on IBM Z, which is big-endian'
	@echo 'make riscv64    the same on 64-bit RISC-V'
	@echo 'make i686       unit tests and the C suite as 32-bit programs (RUNS=..., TESTS="t_ep ...", UNIT="guarded ...")'
	@echo 'make musl       unit tests and the C suite with the C library musl (RUNS=..., TESTS="t_ep ...", UNIT="guarded ...")'
	@echo 'make asan       the C test suite under AddressSanitizer'
	@echo 'make dtest      the dtest of dapl2-utils in all its modes (REPEAT=n, MODES="-p ...")'
	@echo 'make dapltest   dapltest, dtestcm, dtestsrq and dtestx of dapl2-utils (REPEAT=n, CASES="F/* ...")'
	@echo 'make bench      libdat beside UCX and libfabric, against its targets (ROUNDS=n, ONLY="shm tcp.send ...")'
	@echo 'make bench-crowd  many connections, more pollers than processors, ... (ONLY="connections fairness")'
	@echo 'make vm-check   the verbs provider on real kernel devices, in a virtual machine'
	@echo 'make bench-profile  where the instructions of an operation are (ONLY="loopback shm")'
	@echo 'make bench-verbs  what the library adds to verbs, next to the original one (ROUNDS=n)'
	@echo 'make install    PREFIX=$(PREFIX) DESTDIR=$(DESTDIR); leaves /etc/dat.conf and what packages own alone'
	@echo 'make uninstall  remove what make install has put there (same PREFIX)'
	@echo 'make deb        packages for Debian 12 and 13 in build/deb (DEB_ARCH=i386: 32-bit, in build/deb-i386)'
	@echo 'make rpm        RPM packages in build/rpm'
	@echo 'make dist       a tarball of this commit with all crates, which builds without a network, in build/dist'
	@echo 'make reproducible  that the same commit gives the same tarball, libraries and programs'
	@echo 'make fresh-check  what README says, on bare systems, as root and as a user (RUNS="debian-12:root ubuntu-24.04:user ...")'
	@echo 'make clean      remove build/ and target/'

lint:
	scripts/deps.sh lint
	scripts/lint.sh

loom:
	scripts/deps.sh build
	LOOM_MAX_PREEMPTIONS='$(or $(LOOM_MAX_PREEMPTIONS),3)' scripts/loom.sh

order:
	scripts/deps.sh run
	scripts/order.sh $(TESTS)

sim:
	scripts/deps.sh build
	scripts/sim.sh

model:
	scripts/deps.sh build
	@$(MAKE) --no-print-directory libs $(C_MODEL:%=$(OUT)/dat/%) $(C_MODEL:%=$(OUT)/dat2/%)
	scripts/model.sh $(OUT)

# In the dev build, whose compilation is short.
mutants:
	scripts/deps.sh run
	@$(MAKE) --no-print-directory PROFILE=dev ctest-bin $(C_MODEL:%=build/dev/dat/%) $(C_MODEL:%=build/dev/dat2/%)
	scripts/mutants.sh build/dev

asan:
	scripts/deps.sh run
	scripts/asan.sh

fuzz:
	scripts/deps.sh fuzz
	FUZZ_SECONDS='$(or $(FUZZ_SECONDS),3600)' scripts/fuzz.sh

vm-check:
	scripts/deps.sh check
	@$(MAKE) --no-print-directory libs ctest-bin
	vm/check.sh

tsan:
	scripts/deps.sh build
	scripts/tsan.sh

tsan-programs:
	scripts/deps.sh run
	@$(MAKE) --no-print-directory libs
	scripts/tsan-programs.sh $(OUT)

miri:
	scripts/deps.sh build
	scripts/miri.sh

aarch64:
	scripts/deps.sh aarch64
	scripts/emulated.sh aarch64

ppc64le:
	scripts/deps.sh ppc64le
	scripts/emulated.sh ppc64le $(TESTS)

s390x:
	scripts/deps.sh s390x
	scripts/emulated.sh s390x $(TESTS)

riscv64:
	scripts/deps.sh riscv64
	scripts/emulated.sh riscv64 $(TESTS)

aarch64-vm:
	scripts/deps.sh aarch64
	scripts/aarch64-vm.sh $(TESTS)

i686:
	scripts/deps.sh i686
	scripts/i686.sh $(TESTS)

musl:
	scripts/deps.sh musl
	scripts/musl.sh $(TESTS)

deny:
	scripts/deps.sh build
	scripts/deny.sh

deps:
	scripts/deps.sh build

# --- the libraries, under the names that programs and linkers look for ---------------------

libs: $(OUT)/lib/libdat.so $(OUT)/lib/libdat2.so $(PROVIDERS:%=$(OUT)/lib/.provider.%)

$(BUILT)/.complete: $(RUST_SOURCES) $(BUILT)/.target
	@CARGO='$(CARGO)' CC='$(CC)' scripts/deps.sh --check build
	CARGO='$(CARGO)' scripts/build.sh $(BUILT) $(PROFILE) $(PACKAGES)
	@touch $@

# What the last build was for: another target needs another build.
$(BUILT)/.target: FORCE
	@mkdir -p $(@D)
	@echo '$(CARGO_BUILD_TARGET) $(CARGO_TARGET_DIR)' | cmp -s - $@ || \
		echo '$(CARGO_BUILD_TARGET) $(CARGO_TARGET_DIR)' >$@

$(OUT)/lib/libdat.so: $(BUILT)/.complete
	@mkdir -p $(@D)
	ln -sf $(abspath $(BUILT))/libdat.so $(@D)/$(LIB1)
	ln -sf $(LIB1) $(@D)/libdat.so.1
	ln -sf libdat.so.1 $@
	@touch -h $@

$(OUT)/lib/libdat2.so: $(BUILT)/.complete
	@mkdir -p $(@D)
	ln -sf $(abspath $(BUILT))/libdat2.so $(@D)/$(LIB2)
	ln -sf $(LIB2) $(@D)/libdat2.so.2
	ln -sf libdat2.so.2 $@
	@touch -h $@

$(OUT)/lib/.provider.%: $(BUILT)/.complete
	@mkdir -p $(@D)
	ln -sf $(abspath $(BUILT))/libdapl_$(subst .,_,$*).so \
		$(@D)/libdapl-$(basename $*).so$(suffix $*)
	@touch $@

# --- C programs ----------------------------------------------------------------------------

# The programs find the library when they run, so a new library is no reason to link again.
# $(1): directory below $(OUT), $(2): library to link with, $(3): flags
define c_rules
$(OUT)/obj/$(1)/%.o: tests-c/%.c $(C_HEADERS)
	@mkdir -p $$(@D)
	$(CC) $(C_FLAGS) $(3) $(CFLAGS) -c -o $$@ $$<

$(OUT)/$(1)/%: $(OUT)/obj/$(1)/%.o $(C_SHARED:%=$(OUT)/obj/$(1)/%.o) | $(OUT)/lib/lib$(2).so
	@mkdir -p $$(@D)
	$(CC) $(CFLAGS) -pthread -o $$@ $$^ -L$(OUT)/lib -l$(2)
endef
$(eval $(call c_rules,dat,dat,))
$(eval $(call c_rules,dat2,dat2,-DDAT2))
.SECONDARY:

# The program executes itself, and its memory is at the same address again.
$(OUT)/dat/t_exec $(OUT)/dat2/t_exec: private CFLAGS += -no-pie

# The programs whose allocations fail have their own malloc.
$(OUT)/dat/t_memory $(OUT)/dat/t_memory_calls $(OUT)/dat/t_memory_many: $(OUT)/obj/dat/failing_malloc.o
$(OUT)/dat2/t_memory $(OUT)/dat2/t_memory_calls $(OUT)/dat2/t_memory_many: $(OUT)/obj/dat2/failing_malloc.o

$(OUT)/dat_demo: $(C_DEMO:%=$(OUT)/obj/dat/%.o) | $(OUT)/lib/libdat.so
	$(CC) $(CFLAGS) -o $@ $^ -L$(OUT)/lib -ldat

# Runs a program as on an older version of Linux.
$(OUT)/old_kernel: tests-c/old_kernel.c
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(CFLAGS) -o $@ $<

# Of functions that DAT 1.2 does not have.
C_TESTS_2_0 := t_atomics t_cno_fd t_counters t_csp t_datagram_peers t_datagrams t_exchange t_extensions t_immediate t_rmr_ep t_rmr_invalidate t_zero_based t_zero_based_rmr
ctest-bin: $(patsubst %,$(OUT)/dat/%,$(filter-out $(C_TESTS_2_0),$(C_TESTS))) $(C_TESTS:%=$(OUT)/dat2/%)

# On libraries of a dev build whose threads can be delayed at points (src/delay.rs), and own locks
# after one use (src/handle/biased.rs).
ORDER_OUT := build/order
ORDER := $(MAKE) --no-print-directory PROFILE=dev OUT=$(ORDER_OUT) RUSTFLAGS='$(RUSTFLAGS) --cfg dat_order' CARGO_TARGET_DIR=$(CURDIR)/$(ORDER_OUT)/target
order-bin:
	scripts/deps.sh build
	+@$(ORDER) libs $(patsubst %,$(ORDER_OUT)/dat/%,$(filter-out $(C_TESTS_2_0),$(TESTS))) $(TESTS:%=$(ORDER_OUT)/dat2/%)

# The programs poll for events: so nearly every call that has a short way for an owner goes it.
ctest-order:
	scripts/deps.sh run
	+@EXPECT=poll $(ORDER) ctest

ctest:
	scripts/deps.sh run
	@$(MAKE) --no-print-directory ctest-bin $(if $(KERNEL),$(OUT)/old_kernel)
	VALGRIND=$(VALGRIND) KERNEL=$(KERNEL) scripts/ctest.sh $(OUT) $(TESTS)

# Killed a thousand times, over shared memory and over TCP.
kill:
	scripts/deps.sh run
	@$(MAKE) --no-print-directory ctest-bin
	KILL_ROUNDS=$(or $(KILL_ROUNDS),1000) TAP_TIMEOUT=1200 LIMIT=1300 \
		RUNS='$(or $(RUNS),dat2:soft-shm dat2:soft-shared dat2:soft-tcp)' \
		scripts/ctest.sh $(OUT) t_kill

# Each allocation of a program fails in turn, then every third and every seventh of all other
# programs.
oom:
	scripts/deps.sh run
	@$(MAKE) --no-print-directory ctest-bin $(OUT)/failing_malloc.so
	scripts/oom.sh $(OUT) $(TESTS)

$(OUT)/failing_malloc.so: tests-c/failing_malloc.c tests-c/failing_malloc.h
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(CFLAGS) -fPIC -shared -o $@ $<

# The same for a time; each path in turn.
soak:
	scripts/deps.sh run
	@$(MAKE) --no-print-directory ctest-bin
	SOAK_SECONDS=$(or $(SOAK_SECONDS),600) TAP_TIMEOUT=1000000 LIMIT=1000000 \
		RUNS='$(or $(RUNS),dat2:soft-shm dat2:soft-shared dat2:soft-tcp)' \
		scripts/ctest.sh $(OUT) t_kill

dapltest:
	scripts/deps.sh programs
	@$(MAKE) --no-print-directory libs
	scripts/dapltest.sh --lib $(OUT)/lib --repeat $(REPEAT) $(CASES)

dtest:
	scripts/deps.sh programs
	@$(MAKE) --no-print-directory libs
	scripts/dtest.sh --lib $(OUT)/lib --repeat $(REPEAT) $(MODES)

# Not with PROFILE=dev: those figures mean nothing.
bench:
	scripts/deps.sh bench
	@$(MAKE) --no-print-directory PROFILE=release libs build/bench/touch
	ROUNDS='$(ROUNDS)' ONLY='$(ONLY)' scripts/bench.sh build/release/cargo build/bench

bench-crowd:
	scripts/deps.sh bench
	@$(MAKE) --no-print-directory PROFILE=release libs
	scripts/bench-crowd.sh build/release/cargo $(ONLY)

# What UCX does with messages that are written and read.
build/bench/touch: benches/ucx/touch.c
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) -O3 -o $@ $< -lucp -lucs

demo:
	scripts/deps.sh build
	@$(MAKE) --no-print-directory PROFILE=release build/release/dat_demo
	scripts/demo.sh build/release

check:
	scripts/deps.sh check
	scripts/check.sh

# The same with every suite whole.
check-long: export LONG = 1
check-long:
	scripts/deps.sh check-long
	scripts/check.sh

# In a workspace of its own, and no part of make check: bindgen takes its time.
check-rdma-sys:
	scripts/deps.sh check-rdma-sys
	$(CARGO) test --locked --manifest-path tests/rdma_sys/Cargo.toml \
		--target-dir '$(or $(CARGO_TARGET_DIR),target)/rdma_sys'

# --- the cost on top of verbs --------------------------------------------------------------

# rdma-core's libraries for a device that does nothing, and the programs that run on them.
BENCH := $(OUT)/bench-verbs
STANDIN_FLAGS = $(C_FLAGS) $(CFLAGS) -fPIC -shared -Wl,-soname,$(@F) -Wl,--version-script=$(filter %.map,$^)

$(BENCH)/lib/libibverbs.so.1: benches/verbs/standin_verbs.c benches/verbs/standin_qp.c benches/verbs/standin.h benches/verbs/libibverbs.map
	@mkdir -p $(@D)
	$(CC) $(STANDIN_FLAGS) -o $@ $(filter %.c,$^)

$(BENCH)/lib/librdmacm.so.1: benches/verbs/standin_cm.c benches/verbs/standin.h benches/verbs/librdmacm.map $(BENCH)/lib/libibverbs.so.1
	$(CC) $(STANDIN_FLAGS) -o $@ $(filter-out %.map %.h,$^)

$(BENCH)/overhead_raw: benches/verbs/overhead_raw.c benches/verbs/measure.h $(BENCH)/lib/libibverbs.so.1
	$(CC) $(C_FLAGS) $(CFLAGS) -o $@ $< $(BENCH)/lib/libibverbs.so.1

# The library finds a function of the program's own (-rdynamic).
$(BENCH)/overhead_dat: benches/verbs/overhead_dat.c benches/verbs/node.c benches/verbs/measure.h $(C_HEADERS) | $(OUT)/lib/libdat2.so
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(CFLAGS) -rdynamic -o $@ $(filter %.c,$^) -L$(OUT)/lib -ldat2

bench-verbs-bin: libs $(BENCH)/lib/librdmacm.so.1 $(BENCH)/overhead_raw $(BENCH)/overhead_dat

bench-verbs:
	scripts/deps.sh bench-verbs
	@$(MAKE) --no-print-directory bench-verbs-bin
	scripts/bench-verbs.sh $(OUT) $(ROUNDS)

# With the names of files and lines in the library.
bench-profile:
	scripts/deps.sh bench-profile
	@$(MAKE) --no-print-directory bench-verbs-bin
	scripts/bench-profile.sh $(OUT) $(ONLY)

# --- installation --------------------------------------------------------------------------

install: $(BUILT)/.complete
	@for directory in '$(LIBDIR)' '$(INCLUDEDIR)' '$(BINDIR)' '$(MANDIR)' '$(DOCDIR)'; do \
		case $$directory in /*) ;; *) \
			echo "install: $$directory is no absolute path" >&2; exit 1 ;; esac; \
	done
	@stage=$$(mktemp -d) && trap 'rm -rf "$$stage"' EXIT && \
	$(MAKE) --no-print-directory --silent stage D="$$stage" && \
	scripts/install.sh install "$$stage" '$(DESTDIR)' '$(MANIFEST)' '$(LIBDIR)'
	@echo 'No dat.conf is installed and none is touched: without one the built-in table applies.'
	@echo 'An example: $(DOCDIR)/dat.conf.example'

# What a file of pkg-config or CMake says of where things are: the options of sed for its template.
# $(1) is the variable with the file's own directory, $(2) that directory below LIBDIR, and $(3) the
# variable with the prefix, which is found from there. So what is installed may be moved. Directories
# that are not below PREFIX stand as they are.
places = -e 's|@PREFIX@|$(if $(filter $(PREFIX)/%,$(LIBDIR)),$(1)/$(shell \
	realpath -ms --relative-to='$(LIBDIR)/$(2)' '$(PREFIX)'),$(PREFIX))|' \
	-e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$(or $(3),$${prefix})/%,$(LIBDIR))|' \
	-e 's|@INCLUDEDIR@|$(patsubst $(PREFIX)/%,$(or $(3),$${prefix})/%,$(INCLUDEDIR))|' \
	-e 's|@VERSION@|$(VERSION)|'

# Everything that is installed, below the directory D.
stage: $(BUILT)/.complete
	@[ -n '$(D)' ]
	$(INSTALL) -d '$(D)$(LIBDIR)/pkgconfig' '$(D)$(INCLUDEDIR)/dat' '$(D)$(INCLUDEDIR)/dat2' \
		'$(D)$(BINDIR)' '$(D)$(DOCDIR)'
	$(INSTALL_DATA) $(BUILT)/libdat.so '$(D)$(LIBDIR)/$(LIB1)'
	$(INSTALL_DATA) $(BUILT)/libdat2.so '$(D)$(LIBDIR)/$(LIB2)'
	ln -sf $(LIB1) '$(D)$(LIBDIR)/libdat.so.1'
	ln -sf libdat.so.1 '$(D)$(LIBDIR)/libdat.so'
	ln -sf $(LIB2) '$(D)$(LIBDIR)/libdat2.so.2'
	ln -sf libdat2.so.2 '$(D)$(LIBDIR)/libdat2.so'
	for provider in $(PROVIDERS); do \
		$(INSTALL_DATA) $(BUILT)/libdapl_$$(echo $$provider | tr . _).so \
			'$(D)$(LIBDIR)'/libdapl-$${provider%.*}.so.$${provider#*.} || exit 1; \
	done
	$(INSTALL_DATA) include/dat/*.h '$(D)$(INCLUDEDIR)/dat'
	$(INSTALL_DATA) include/dat2/*.h '$(D)$(INCLUDEDIR)/dat2'
	$(INSTALL) $(TOOLS:%=$(BUILT)/%) '$(D)$(BINDIR)'
	OBJCOPY='$(OBJCOPY)' scripts/debug-info.sh $(DEBUG_INFO) '$(D)$(LIBDIR)/$(LIB1)' '$(D)$(LIBDIR)/$(LIB2)' \
		$(foreach provider,$(PROVIDERS),'$(D)$(LIBDIR)'/libdapl-$(basename $(provider)).so$(suffix $(provider))) \
		$(TOOLS:%='$(D)$(BINDIR)'/%)
	for pc in dat dat2; do \
		sed $(call places,$${pcfiledir},pkgconfig) pkgconfig/$$pc.pc.in \
			> '$(D)$(LIBDIR)'/pkgconfig/$$pc.pc && \
		chmod 644 '$(D)$(LIBDIR)'/pkgconfig/$$pc.pc || exit 1; \
	done
	for library in dat:1 dat2:2; do \
		name=$${library%:*} && to='$(D)$(LIBDIR)'/cmake/$$name && $(INSTALL) -d "$$to" && \
		for file in config config-version; do \
			sed $(call places,$${_@NAME@_here},cmake/any,$${_@NAME@_prefix}) \
			    -e "s|@NAME@|$$name|g" -e "s|@MAJOR@|$${library#*:}|g" \
			    cmake/$$file.cmake.in > "$$to/$$name-$$file.cmake" && \
			chmod 644 "$$to/$$name-$$file.cmake" || exit 1; \
		done || exit 1; \
	done
	for page in man/*.[1-8] man/man3/*.3; do \
		section='$(D)$(MANDIR)'/man$${page##*.}; \
		$(INSTALL) -d "$$section" && \
		if [ -L $$page ]; then ln -sf $$(readlink $$page) "$$section/$${page##*/}"; \
		else $(INSTALL_DATA) $$page "$$section"; fi || exit 1; \
	done
	$(INSTALL_DATA) README.md LICENSE-MIT LICENSE-APACHE dat.conf.example '$(D)$(DOCDIR)'
	$(INSTALL) -d '$(D)$(DOCDIR)/docs' '$(D)$(DOCDIR)/examples'
	$(INSTALL_DATA) docs/cookbook.md '$(D)$(DOCDIR)/docs'
	$(INSTALL_DATA) examples/README.md examples/*.c examples/*.cpp '$(D)$(DOCDIR)/examples'

uninstall:
	scripts/install.sh uninstall '$(DESTDIR)' '$(MANIFEST)'

# --- packages -------------------------------------------------------------------------------

deb rpm: export PROFILE := release
# DEB_ARCH=i386: the packages of that architecture, which their rules build.
deb: export DEB_ARCH := $(DEB_ARCH)
deb:
	scripts/deps.sh deb
	@[ '$(DEB_ARCH)' != i386 ] || scripts/deps.sh i686
	@[ -n '$(DEB_ARCH)' ] || $(MAKE) --no-print-directory libs
	scripts/deb.sh

rpm:
	scripts/deps.sh rpm
	@$(MAKE) --no-print-directory libs
	scripts/rpm.sh

dist:
	scripts/dist.sh

reproducible:
	scripts/deps.sh build
	scripts/reproducible.sh

# RUNS="12:root 13:user" are some of the four.
fresh-check:
	scripts/deps.sh fresh
	scripts/fresh-test.sh $(RUNS)

clean:
	rm -rf build
	$(CARGO) clean
