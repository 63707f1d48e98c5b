# Makefile of gpusync. There is nothing to build for users of the header: copy gpusync.h.
# This is for the examples, the tests and the benchmarks. Everything that is made goes to $(BUILD).

.DEFAULT_GOAL := help
ifndef V
.SILENT:
endif
.SUFFIXES:
.DELETE_ON_ERROR:
.SECONDARY:

BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
SYSTEM := $(shell uname -s)
N ?= 20
comma := ,

darwin := $(filter Darwin,$(shell uname -s))
VERSION := $(shell sed -n 's/^.define GPUSYNC_VERSION_M[AI][JN]OR *//p; s/^.define GPUSYNC_VERSION_PATCH *//p' \
	gpusync.h | paste -s -d. -)

# What runs on one system says so elsewhere, before anything is installed or built.
linux_only := check check-long bench-spin bench-five test-pictures test-valgrind test-compile test-macho \
	test-macho-mutants test-mutants test-guards test-counts test-growth test-vulkan bench-gpu fuzz fuzz-threads fuzz-proof soak coverage test-model \
	test-with test-readme test-examples next-compile next-counts
mac_only := bench-device test-device
not_here := $(filter $(if $(darwin),$(linux_only),$(mac_only)),$(MAKECMDGOALS))
ifneq ($(not_here),)
$(error $(firstword $(not_here)): $(if $(darwin),Linux,macOS) only)
endif

# Without a -j what compiles many files, and is asked for alone, uses all cores. Not so what measures, and what make or a
# script calls; nor the make of macOS, 3.81, which would take this for more than the -j that it is given.
ifneq ($(if $(word 2,$(MAKECMDGOALS)),,$(filter test test-next test-device test-valgrind test-examples test-vulkan examples programs coverage loop,$(MAKECMDGOALS))),)
ifeq ($(MAKELEVEL)$(filter -j% 3.%,$(MAKEFLAGS) $(MAKE_VERSION)),0)
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
endif
endif

# What softmetal prints has its folder's name in it, and is split into words.
ifneq ($(filter softmetal,$(MAKECMDGOALS)),)
ifneq ($(words $(abspath $(BUILD)))$(findstring ',$(abspath $(BUILD))),1)
$(error make softmetal: the shell would split the name "$(abspath $(BUILD))". Move gpusync, or give BUILD=, without a blank or ')
endif
endif

# ------------------------------------------------------------------------------------------- what is missing
# The targets below need programs and libraries; tests/deps.sh installs those that are not there. This is done
# before anything else, as the rules ask the installed programs for their options.

# The processors of make test-macho: the machine's own, and arm64 under qemu
MACHO_ARCH ?= $(filter x86_64,$(shell uname -m)) aarch64

macho_level = $(if $(filter aarch64,$(MACHO_ARCH)),macho,check)
deps_level := $(if $(filter test-macho test-macho-mutants,$(MAKECMDGOALS)),$(macho_level),$(if \
	$(filter test-with,$(MAKECMDGOALS)),with,$(if \
	$(filter check check-long test-compile test-apple test-valgrind test-guards test-counts test-growth fuzz fuzz-threads fuzz-proof soak,$(MAKECMDGOALS)),check,$(if \
	$(filter coverage,$(MAKECMDGOALS)),coverage,$(if \
	$(filter next-compile next-counts,$(MAKECMDGOALS)),next,$(if \
	$(filter test-vulkan bench-gpu,$(MAKECMDGOALS)),vulkan,$(if \
	$(filter bench-five,$(MAKECMDGOALS)),bench,$(if \
	$(filter test test-% bench bench-spin loop programs $(if $(RECORD),pictures),$(filter-out test-model test-pictures,$(MAKECMDGOALS))),test,$(if \
	$(filter run examples softmetal bench-device beliefs,$(MAKECMDGOALS)),run)))))))))
ifneq ($(deps_level),)
ifeq ($(findstring n,$(firstword -$(MAKEFLAGS))),)
ifneq ($(shell BUILD='$(abspath $(BUILD))' tests/deps.sh $(deps_level) >&2 || echo failed),)
$(error something is missing, see above)
endif
endif
endif

# --------------------------------------------------------------------------------------- compilers and options

# Apple's make has no OBJC of its own, GNU's says gcc.
ifneq ($(filter default undefined,$(origin OBJC)),)
OBJC := clang
endif
ifeq ($(origin CXX),default)
CXX := $(if $(SANITIZE),clang++,$(if $(shell command -v g++),g++,c++))
endif
ifeq ($(origin CC),default)
CC := $(if $(SANITIZE),clang,$(if $(darwin),cc,$(if $(shell command -v gcc),gcc,clang)))
endif
CFLAGS ?= -O2 -g
WERROR ?=

# A directory for each compiler and sanitizer, so that their objects do not mix. In the form without the path of this folder,
# however it was given: the compiler's lists of headers have the names of the objects, and make knows a file by one name.
top := $(patsubst $(CURDIR)/%,%,$(BUILD))
sanitizers := $(SANITIZE)
override BUILD := $(top)/$(notdir $(firstword $(CC)))$(if $(sanitizers),-$(subst $(comma),-,$(sanitizers)))
# DWARF 4: what valgrind up to 3.19 can read of clang's objects. Everything that is compiled gets these options.
override SANITIZE := $(if $(darwin),,-gdwarf-4) \
	$(if $(sanitizers),-fsanitize=$(sanitizers) -fno-sanitize-recover=all -fno-omit-frame-pointer)

warnings := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Wno-nonnull $(if $(WERROR),-Werror)
includes := -I. -Itests -Itests/softmetal -Iexamples
# cmocka 2 deprecates assert_in_range, and cmocka 1 has no other.
cmocka_flags = -DCMOCKA_DISABLE_DEPRECATION_WARNINGS $(patsubst -I%,-isystem %,$(shell pkg-config --cflags cmocka 2>/dev/null || \
	{ test -e /opt/homebrew/include/cmocka.h && echo -I/opt/homebrew/include; }))
cmocka_libs = $(shell pkg-config --libs cmocka 2>/dev/null || \
	{ test -e /opt/homebrew/lib && echo -L/opt/homebrew/lib; echo -lcmocka; })
# Libraries that one program needs. Without libuv the example is left out, without jansson the test skips itself.
header = $(firstword $(wildcard $(addsuffix /include/$(1),/usr /usr/local /opt/homebrew)))
uv := $(call header,uv.h)
jansson := $(call header,jansson.h)
include_of = $(patsubst %,-isystem %,$(filter /opt/%,$(dir $(1))))
library_of = $(if $(1),$(patsubst /opt/%/include/,-L/opt/%/lib,$(filter /opt/%,$(dir $(1)))) -l$(2))
frameworks := -framework Metal -framework CoreGraphics -framework Foundation -lobjc

ifdef darwin
# For ucontext's sake, which Apple deprecates.
test_flags := -std=c11 -D_XOPEN_SOURCE=700 -D_DARWIN_C_SOURCE= -Wno-deprecated-declarations
example_flags := -std=c99
else
test_flags := -std=c11 -D_GNU_SOURCE -DGPUSYNC_OBJC=1
example_flags := -std=c99 -D_POSIX_C_SOURCE=200809L -DGPUSYNC_OBJC=1
endif

OBJCC := $(OBJC)
include tests/softmetal/build.mk

# Examples run on the machine's own Metal where there is one.
example_lib := $(if $(darwin),,$(SOFTMETAL_LIB))
example_link = $(if $(darwin),-framework QuartzCore $(frameworks),$(SOFTMETAL_LDLIBS))
# ... but for those that are tests, with faults on purpose: these are linked with softmetal on a Mac too.
on_softmetal := $(basename $(notdir $(shell grep -l '^ *\# *include "softmetal.h"' $(wildcard examples/*.c) /dev/null)))

# What users link with, and the header beside it. On Linux -lsoftmetal is enough, for a program in any language: it is a
# linker script that names the shared library, and the runtimes whose symbols gpusync.h uses itself. On a Mac a program keeps
# the system's libdispatch: it may use more of that than softmetal has.
softmetal_for_users := $(top)/softmetal$(if $(sanitizers),-$(subst $(comma),-,$(sanitizers)))/libsoftmetal.$(if $(darwin),a,so)

# A sanitizer of clang's has to be in the program, too: in what it is compiled and in what it is linked with. GNUstep needs the
# suppressions.
for_sanitizer := $(if $(sanitizers), -fsanitize=$(sanitizers))
suppress = "export $(1)='suppressions=$(CURDIR)/tests/softmetal/$(2)'"
tell_sanitizer = $(if $(sanitizers),'export CC=$(OBJCC) CXX=$(subst clang,clang++,$(OBJCC))') $(if $(darwin),, \
	$(if $(findstring thread,$(sanitizers)),$(call suppress,TSAN_OPTIONS,tsan.supp)) \
	$(if $(findstring address,$(sanitizers))$(findstring leak,$(sanitizers)),$(call suppress,LSAN_OPTIONS,lsan.supp:print_suppressions=0)))

compile = $(CC) $(CFLAGS) $(SANITIZE) $(warnings) $(includes) -MMD -MP -c -o $@ $<

# The fuzzer is clang's, and so is everything it is linked with. Its objects are those of the sanitizers' tests.
TIME ?= 60
fuzz_options = CC='$(if $(findstring clang,$(CC)),$(CC),clang)' BUILD='$(top)' TIME='$(TIME)' \
	SEED='$(SEED)' INPUT='$(INPUT)'
fuzz_compile = $(CC) $(CFLAGS) $(SANITIZE) -fsanitize=fuzzer $(warnings) $(includes) $(test_flags) $(cmocka_flags)
fuzz_libs = $(SOFTMETAL_LDLIBS) $(cmocka_libs) -lpthread -lm

# Threads count atomically: else counters are lost, and some become negative. No function has to be inlined: so a branch
# of an inline function counts once, and not once for each place that calls it.
coverage_options = CC=gcc SANITIZE= BUILD='$(top)/coverage' \
	CFLAGS='-O0 --coverage -fprofile-update=atomic -DNDEBUG -Dalways_inline=unused'

# What the sanitizers are told. Their reports also count as failures when a program goes on.
export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=$(if $(darwin),0,1)
export LSAN_OPTIONS ?= suppressions=$(CURDIR)/tests/softmetal/lsan.supp:print_suppressions=0
export TSAN_OPTIONS ?= suppressions=$(CURDIR)/tests/softmetal/tsan.supp:history_size=5:second_deadlock_stack=1
export UBSAN_OPTIONS ?= print_stacktrace=1

# ------------------------------------------------------------------------------------------------- the sources

all_tests := $(sort $(basename $(notdir $(wildcard tests/test_*.c))))
TESTS ?= $(all_tests)
left_out := $(if $(uv),,event_loop)
EXAMPLES ?= $(sort $(filter-out $(left_out),$(basename $(notdir $(wildcard examples/*.c)))))
# tests/*.c that are no test programs are linked to each of them
helpers := $(sort $(filter-out $(all_tests),$(basename $(notdir $(wildcard tests/*.c)))))
# Programs that have the implementation in them; the others are linked with gpusync_impl.o.
complete := $(basename $(notdir $(shell grep -l '^ *\# *define *GPUSYNC_IMPLEMENTATION' \
	$(wildcard tests/test_*.c examples/*.c tests/bench/*.c) /dev/null)))
portable := $(sort $(basename $(notdir $(shell grep -l 'portable: also runs on a real Metal device' \
	$(wildcard tests/test_*.c) /dev/null))))
stress := $(filter %stress,$(TESTS))
# bench.c is the program, files without a main are linked to it; those of bench_device to the one for a Mac's GPU,
# those of bench_gpu to the one for a Vulkan device
bench_device := bench device_kernels device_metal json peers stats tools unknown waiting
bench_gpu := gpu gpu_ways device_kernels json peers players stats tools unknown
bench := bench $(sort $(filter-out bench device_metal gpu_ways null players,$(basename $(notdir $(shell grep -L 'int main' \
	$(wildcard tests/bench/*.c) /dev/null)))))

both_kinds := $(sort $(basename $(notdir $(shell grep -l 'also runs on queues of Metal 4' $(wildcard tests/test_*.c) /dev/null))))
test_programs := $(TESTS:%=$(BUILD)/tests/%)
metal4_programs := $(patsubst %,$(BUILD)/tests/%,$(filter $(both_kinds),$(TESTS)))
example_programs := $(EXAMPLES:%=$(BUILD)/examples/%)
pretended_programs := $(patsubst %,$(BUILD)/pretended/%,$(filter-out $(on_softmetal),$(EXAMPLES)))
# A Vulkan device has no CAMetalLayer here.
vulkan_examples := $(filter-out $(on_softmetal) frames pacing,$(EXAMPLES))
vulkan_programs := $(patsubst %,$(BUILD)/vulkan/%,stress test_portable beliefs $(vulkan_examples:%=examples/%))
device_programs := $(portable:%=$(BUILD)/device/%)
beliefs := $(BUILD)/$(if $(darwin),device,beliefs)/beliefs
tell_left_out := $(if $(left_out),echo 'left out for lack of libuv: examples/event_loop.c')
run_tests := RUN='$(RUN)' tests/run.sh

# What is installed below PREFIX. The packages are in lib, not in share: on a Mac Homebrew's pkg-config looks into
# /usr/local/lib, and not into /usr/local/share.
cmake_package := lib/cmake/gpusync
licence := share/licenses/gpusync/LICENSE
installed := include/gpusync.h lib/pkgconfig/gpusync.pc $(cmake_package)/gpusyncConfig.cmake \
	$(cmake_package)/gpusyncConfigVersion.cmake $(licence)
place = '$(subst ','\'',$(DESTDIR)$(PREFIX))'
fill_in = sed -e 's/@VERSION@/$(VERSION)/' -e 's/@LIBS@/$(if $(filter Darwin,$(SYSTEM)),$(frameworks))/'
licence_text = sed -n -e '/^ *SPDX-License-Identifier/,$$ { s/^   //; s, \*/$$,,; p; }' gpusync.h
release = gpusync-$(VERSION)
sha256 := $(if $(darwin),shasum -a 256,sha256sum)

# ------------------------------------------------------------------------------------------- what users call

help: ## this text
	echo 'gpusync $(VERSION). Targets:'
	sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1 \2/p' Makefile tests/next/next.mk | \
		while read -r target text; do printf '  %-18s %s\n' "$$target" "$$text"; done
	echo 'Linux only: $(linux_only)'
	echo 'Variables, with make TARGET NAME=VALUE:'
	sed -n 's/^## / /p' Makefile

ifndef NEXT
run: $(BUILD)/readme $(BUILD)/examples/quickstart ## build and run the program of README.md, then examples/quickstart.c
	printf '%s\n' '' 'The program of README.md:' ''
	sed 's/^/    /' $(BUILD)/readme.c
	printf '%s\n' '' 'What it prints, and how long it takes:' ''
	bash -c 'TIMEFORMAT="    %R s"; time { $(RUN) $(BUILD)/readme 2>&1 | sed "s/^/    /"; }' 2>&1
	printf '%s\n' '' 'Every way to ask and to wait (examples/quickstart.c): the answer, what ended the wait, how long the call took:' ''
	$(RUN) $(BUILD)/examples/quickstart || test $$? -eq 77 # skipped, with the reason
endif

test: $(test_programs) $(example_programs) ## build and run all tests; ends with "N passed, N failed"
	$(tell_left_out)
	$(run_tests) $(test_programs) --metal4 $(metal4_programs) --examples $(example_programs)

check: ## the whole of CI: tests, sanitizers, valgrind, every compiler and standard, the READMEs
	V='$(V)' BUILD='$(abspath $(top))' .ci/run

check-long: ## what takes longer: planted faults, stress at full length, coverage, the model (GENMC=), a soak (HOURS=, 0.5)
	V='$(V)' BUILD='$(abspath $(top))' GENMC='$(GENMC)' HOURS='$(HOURS)' .ci/run long

BENCH_JSON ?= $(BUILD)/bench/bench.json
RUNS ?= 5

bench: $(BUILD)/bench/bench ## build and run the benchmarks: some four minutes; results also in BENCH_JSON
	BENCH_JSON='$(BENCH_JSON)' $(RUN) $<

bench-device: $(BUILD)/device/bench ## on a Mac: the benchmark's waits, with kernels on the real Metal device
	BENCH_JSON='$(BENCH_JSON)' $(RUN) $<

bench-spin: $(BUILD)/bench/spin ## the spin of a wait against two simple rules, in virtual time, for 140 patterns of work
	$< $(WAITS)

bench-five: $(BUILD)/bench/bench ## the benchmarks RUNS times, and what was missed in three of five
	tests/bench/five.sh $< $(BUILD)/bench/five $(RUNS)

bench-gpu: $(BUILD)/vulkan/bench_gpu ## on Metal over Vulkan: ways to wait for work of 20 us to 20 ms, RUNS times; a table and two pictures
	RUN='$(RUN)' tests/bench/gpu.sh $< $(BUILD)/vulkan/bench-gpu $(RUNS)

recorded = $(addprefix $(BUILD)/,$(if $(filter 1,$(RECORD)),examples/trace examples/overlap bench/bench,$(RECORD)))
pictures: $(recorded) ## draw examples/pictures from their JSON; RECORD=1: measure anew
	python3 -B examples/pictures/pictures.py $(if $(RECORD),--record $(recorded))

test-pictures: ## are the pictures what their JSON gives, byte by byte?
	tests/pictures.sh $(BUILD)/pictures

examples: $(example_programs) ## build the examples
	$(tell_left_out)
	echo 'built: $(example_programs)'

softmetal: $(softmetal_for_users) ## build softmetal for programs of your own; prints what to compile and link with
	printf '%s\n' "export SOFTMETAL='$(abspath $(<D))'" $(tell_sanitizer) \
		'export CPPFLAGS="-DGPUSYNC_OBJC=1 -I$$SOFTMETAL$(for_sanitizer)$(if $(sanitizers), -fno-omit-frame-pointer -g)"' \
		'export LDLIBS="$(if $(darwin),$(abspath $<) $(SOFTMETAL_LDLIBS),-L$$SOFTMETAL -lsoftmetal -Wl$(comma)-rpath$(comma)$$SOFTMETAL -lpthread)$(for_sanitizer)"'

install: ## gpusync.h, its packages for CMake and pkg-config, and the licence, to $(DESTDIR)$(PREFIX)
	umask 022 && for folder in $(sort $(dir $(installed))); do mkdir -p $(place)/$$folder || exit; done
	install -m 644 gpusync.h $(place)/include/gpusync.h
	install -m 644 examples/with/cmake/gpusyncConfig.cmake $(place)/$(cmake_package)/gpusyncConfig.cmake
	$(fill_in) examples/with/cmake/gpusyncConfigVersion.cmake.in >$(place)/$(cmake_package)/gpusyncConfigVersion.cmake
	$(fill_in) examples/with/pkg-config/gpusync.pc.in >$(place)/lib/pkgconfig/gpusync.pc
	$(licence_text) >$(place)/$(licence)
	cd $(place) && chmod 644 $(installed)
	for file in $(installed); do printf 'installed: %s\n' $(place)/$$file; done

uninstall: ## delete what make install with the same PREFIX and DESTDIR wrote
	for file in $(installed); do rm -f $(place)/$$file || exit; done
	for folder in $(sort $(filter %/gpusync/,$(dir $(installed)))); do \
		rmdir $(place)/$$folder 2>/dev/null || true; done # unless it has a file of others

dist: ## the release of this commit, in build/dist: a tarball, the header alone, their SHA-256
	inside=$$(git rev-parse --show-prefix) && test -z "$$inside" || \
		{ echo 'make dist: only in a clone of gpusync, as git has the files' >&2; exit 1; }
	changes=$$(git status --porcelain) && test -z "$$changes" || \
		{ printf '%s\n' 'make dist: a release is a commit. Commit these first:' "$$changes" >&2; exit 1; }
	rm -rf '$(top)/dist'
	mkdir -p '$(top)/dist'
	test -e '$(top)/.gitignore' || echo '*' >'$(top)/.gitignore'
	$(licence_text) >'$(top)/dist/LICENSE' # packagers look for it there
	git -c tar.umask=0022 archive --format=tar --prefix=$(release)/ --add-file='$(top)/dist/LICENSE' HEAD \
		>'$(top)/dist/$(release).tar'
	rm '$(top)/dist/LICENSE'
	gzip -9n '$(top)/dist/$(release).tar'
	cp gpusync.h '$(top)/dist/$(release).h'
	cd '$(top)/dist' && $(sha256) $(release).h $(release).tar.gz >SHA256SUMS
	echo 'made: $(top)/dist'
	cat '$(top)/dist/SHA256SUMS'

clean: ## delete everything that was built (Zig, a parser of Swift and arm64's libraries, which were fetched, stay)
	find '$(top)' -mindepth 1 -maxdepth 1 ! -name zig ! -name swift ! -name arm64 ! -name .gitignore -exec rm -rf {} + 2>/dev/null || true

deps: ## install what run, test and check need
	BUILD='$(abspath $(top))' tests/deps.sh macho

loop: $(stress:%=$(BUILD)/tests/%) ## run the stress tests N times, until one fails
	test -n '$(stress)' || { echo 'no tests/test_*stress.c'; exit 1; }
	for i in $$(seq $(N)); do echo "round $$i of $(N)"; $(run_tests) $(filter-out loop,$^) || exit 1; done

test-device: $(device_programs) ## on a Mac: the portable tests on the real Metal device
	$(run_tests) $(device_programs)

beliefs: $(beliefs) ## build the probes of tests/on-a-mac.sh: for the Mac's GPU, elsewhere for softmetal
	echo 'built: $<'

test-beliefs: $(BUILD)/tests/test_beliefs $(BUILD)/beliefs/beliefs ## the probes, on softmetal turned against each belief
	JOBS=1 KNOBS=all TIME_LIMIT=600 $(run_tests) $< --examples $(BUILD)/beliefs/beliefs

test-valgrind: $(VALGRIND:%=$(BUILD)/tests/%) ## the tests named in VALGRIND= under valgrind
	RUN='valgrind -q --error-exitcode=99 --trace-children=no --leak-check=no --suppressions=tests/valgrind.supp' tests/run.sh $^

test-compile: $(SOFTMETAL_LIB) ## every compiler, standard, way of including; Windows, macOS
	BUILD='$(abspath $(top))' V='$(V)' SOFTMETAL_LINK='$(abspath $(SOFTMETAL_LIB)) $(SOFTMETAL_LDLIBS)' \
		tests/compile.sh $(PARTS)

macho = BUILD='$(abspath $(top))' SOFTMETAL_LDLIBS='$(SOFTMETAL_LDLIBS)'
macho_run = $(macho) TESTS='$(TESTS)' EXAMPLES='$(EXAMPLES)' tests/macho/macho.sh

test-apple: ## all tests, and softmetal, compiled for macOS and run here, without qemu
	$(macho_run) $(shell uname -m)

test-macho: ## the same for the processors in MACHO_ARCH: x86-64, and arm64 with qemu
	$(macho_run) $(MACHO_ARCH)

test-macho-mutants: ## lines of gpusync.h and softmetal that only Apple compiles, broken one by one: each must be seen
	$(macho) tests/macho/mutants.sh $(MACHO_ARCH)

test-mutants: ## faults in gpusync.h, planted one by one: a test has to see each; ONLY= some of them
	BUILD='$(abspath $(top))' CC='$(CC)' TESTS='$(all_tests)' BOTH='$(both_kinds)' EXAMPLES='$(EXAMPLES)' \
		UPDATE='$(UPDATE)' JOBS='$(JOBS)' tests/mutants.sh $(ONLY)

guards_objects := $(addprefix $(BUILD)/tests/,$(addsuffix .o,$(filter-out $(complete),$(TESTS)) $(helpers)))
test-guards: $(guards_objects) ## which lock is over which field: each access is checked against tests/guards/guards.txt while the tests run
	BUILD='$(abspath $(top))' CC='$(CC)' TESTS='$(TESTS)' OBJECTS='$(guards_objects)' tests/guards/guards.sh

test-counts: $(SOFTMETAL_LIB) ## instructions, messages, allocations, wake-ups of the calls against their limits
	CC='$(CC)' BUILD='$(abspath $(BUILD)/counts)' SOFTMETAL_LINK='$(abspath $(SOFTMETAL_LIB)) $(SOFTMETAL_LDLIBS)' \
		tests/bench/counts.sh

test-known-red: $(BUILD)/tests/known_red/known_red ## the defects that are known: each of their tests must be red
	tests/known_red.sh $<

test-growth: $(SOFTMETAL_LIB) ## how the cost of the calls grows with n, against tests/bench/growth.txt
	CC='$(CC)' BUILD='$(abspath $(BUILD)/growth)' SOFTMETAL_LINK='$(abspath $(SOFTMETAL_LIB)) $(SOFTMETAL_LDLIBS)' \
		UPDATE='$(UPDATE)' ROWS='$(ROWS)' tests/bench/growth.sh

fuzz: ## bytes to public calls, for TIME seconds, with libFuzzer, ASan and UBSan; INPUT= runs one
	+$(MAKE) --no-print-directory $(fuzz_options) SANITIZE=address,undefined run-fuzz

fuzz-threads: ## the same on four threads, with ThreadSanitizer; INPUT= runs one, N times
	+$(MAKE) --no-print-directory $(fuzz_options) SANITIZE=thread run-fuzz-threads

fuzz-proof: ## faults are planted in copies of gpusync.h: a fuzzer finds each; ONLY= some of them
	+$(MAKE) --no-print-directory $(fuzz_options) SANITIZE=address,undefined how-to-fuzz
	+$(MAKE) --no-print-directory $(fuzz_options) SANITIZE=thread how-to-threads
	CORPUS='$(CORPUS)' LIMIT='$(LIMIT)' ONLY='$(ONLY)' RUN='$(RUN)' BUILD='$(abspath $(top))' tests/fuzz/proof.sh

soak: ## random tests with new seeds for HOURS hours; says how the first that fails is run again; SEED= where they begin
	BUILD='$(abspath $(top))' RUN='$(RUN)' tests/soak.sh '$(HOURS)' $(SEED)

coverage: ## lines and branches of gpusync.h that the tests run, by gcc; fails below the limits of tests/coverage.sh
	+$(MAKE) --no-print-directory $(coverage_options) run-coverage

test-model: ## the order of memory, with the model checker GenMC in GENMC=; ONLY= some of it
	GENMC='$(GENMC)' MODEL='$(MODEL)' BUILD='$(abspath $(top))' tests/model/model.sh $(if $(ONLY),'$(ONLY)')

test-with: $(softmetal_for_users) ## examples/with: built and run as its page says, and with faults; make install, dist
	BUILD='$(abspath $(top))' SOFTMETAL='$(abspath $(<D))' tests/with.sh $(ONLY)

test-examples: $(pretended_programs) ## the examples on a pretended GPU: without Metal 4, without a device, without its times, fast, slow
	$(tell_left_out)
	RUN='$(RUN)' LOGS='$(BUILD)/pretended/logs' tests/pretended/forms.sh $^

test-readme: $(SOFTMETAL_LIB) ## compile and run the code of README.md and examples/
	BUILD='$(abspath $(top))' CC='$(CC)' SOFTMETAL_LINK='$(abspath $(SOFTMETAL_LIB)) $(SOFTMETAL_LDLIBS)' \
		tests/readme.sh

test-vulkan: $(vulkan_programs) ## on Metal over Vulkan, where work takes time by itself: a stress, the portable tests, the examples
	$(tell_left_out)
	RUN='$(RUN)' tests/vulkan/vulkan.sh $(if $(sanitizers),,--plain) $(BUILD)/vulkan $(vulkan_examples)

programs: $(test_programs) $(example_programs)

run-coverage: $(test_programs) $(example_programs)
	find '$(BUILD)' -name '*.gcda' -delete
	$(run_tests) $(test_programs) --metal4 $(metal4_programs) --examples $(example_programs)
	tests/coverage.sh '$(BUILD)'

run-fuzz: $(BUILD)/fuzz/fuzz
	TIME='$(TIME)' SEED='$(SEED)' INPUT='$(INPUT)' tests/fuzz/fuzz.sh $<

run-fuzz-threads: $(BUILD)/fuzz/threads
	TIME='$(TIME)' SEED='$(SEED)' INPUT='$(INPUT)' N='$(N)' RUN='$(RUN)' tests/fuzz/fuzz.sh $<

# For proof.sh, which builds both with other headers
how-to-%: $(BUILD)/fuzz/%
	printf '%s\n' "compile='$(fuzz_compile)'" "link='$(abspath $(SOFTMETAL_LIB)) $(fuzz_libs)'" "program='$(abspath $<)'" \
		>'$(top)/how-to-$*'

##  CC CXX OBJC     compilers; default gcc, g++ (with SANITIZE clang, clang++), clang
##  CFLAGS          default -O2 -g
##  BUILD           where everything is built; default build
##  V=1             show the commands
##  WERROR=1        warnings are errors
##  SANITIZE        address,undefined or thread: with these sanitizers (clang)
##  TESTS EXAMPLES  names of those to build and run; default all
##  STRESS          factor for the length of the stress tests; default 1
##  RUN             put in front of every program that is run: RUN=valgrind
##  JOBS            programs that are run at a time; default twice as many as there are cores, and four at most
##  N               rounds of make loop, and of make fuzz-threads INPUT=; default 20
##  PARTS           of make test-compile: matrix ways symbols stubs strict objc copies macho
##  TIME SEED INPUT of make fuzz and fuzz-threads: seconds, default 60; where its random numbers begin (1); an input to run, instead of all that
##  MACHO_ARCH      of make test-macho and test-macho-mutants: x86_64 aarch64; default both
##  HOURS SEED      of make soak: how long, 0.1 or 24; where its seeds begin, default from the clock
##  CORPUS=none     of make fuzz-proof: the fuzzers begin with nothing; LIMIT= seconds for each fault (600)
##  GENMC ONLY MODEL  of make test-model: where GenMC was built; names or patterns; rc11 (default) or imm. ONLY also of fuzz-proof
##  ONLY JOBS       of make test-with: folders of examples/with, packages; what is done at a time
##  ONLY UPDATE JOBS  of make test-mutants: numbers, '17 20-30'; 1 notes in the list which program saw each; programs at a time (2)
##  ROWS UPDATE     of make test-growth: rows to run, 'wait* hold_rising'; 1 lowers the lines of growth.txt
##  BENCH_JSON      where make bench writes what it measured; in BUILD
##  BENCH_ROUNDS BENCH_ONLY BENCH_PIN BENCH_DEVICE  of make bench, see tests/bench/bench.c; the first two also of make bench-gpu
##  RUNS            of make bench-five and bench-gpu; default 5
##  RECORD          of make pictures: 1 runs what measures for them, three minutes with nothing else running; or one of these
##                  programs: examples/trace, examples/overlap, bench/bench (the picture of waits)
##  YES=1           install what is missing without asking; without a terminal there is no question
##  PREFIX DESTDIR  of make install and uninstall; default /usr/local and nothing
##  SYSTEM=Darwin   of make install on another system: gpusync.pc is to be for a Mac, and names the frameworks

.PHONY: help run test check check-long bench bench-spin bench-device bench-five bench-gpu examples install \
	clean deps loop uninstall dist softmetal test-device beliefs test-beliefs test-valgrind test-compile test-readme test-with \
	test-examples test-vulkan test-guards test-counts test-growth test-known-red pictures test-pictures test-mutants fuzz fuzz-threads fuzz-proof \
	run-fuzz run-fuzz-threads test-apple test-macho test-macho-mutants coverage run-coverage \
	test-model soak programs force

# ------------------------------------------------------------------------------------------------------- rules

$(top)/.gitignore:
	mkdir -p $(top)
	echo '*' > $@

# Changes when the compiler or its options do, and then everything is compiled again.
$(BUILD)/flags: force | $(top)/.gitignore
	mkdir -p $(BUILD)/tests/known_red $(BUILD)/fuzz $(BUILD)/examples $(BUILD)/bench $(BUILD)/device $(BUILD)/beliefs \
		$(BUILD)/pretended $(BUILD)/vulkan/examples
	echo '$(CC) $(CFLAGS) $(SANITIZE) $(warnings) $(test_flags)' | cmp -s - $@ || \
		echo '$(CC) $(CFLAGS) $(SANITIZE) $(warnings) $(test_flags)' > $@

# softmetal's objects are made by its own build.mk
$(SOFTMETAL_OBJS): $(BUILD)/flags

$(softmetal_for_users): $(SOFTMETAL_OBJS) tests/softmetal/softmetal.h Makefile
	mkdir -p $(@D)
	cp tests/softmetal/softmetal.h $(@D)/
	$(if $(darwin),rm -f $@; $(AR) rcs $@ $(filter-out %/softmetal_libdispatch.o,$(SOFTMETAL_OBJS)),$(OBJCC) -shared $(SANITIZE) -Wl$(comma)-soname$(comma)$(@F).0 \
		-o $@.0 $(SOFTMETAL_OBJS) $(SOFTMETAL_LDLIBS))
	$(if $(darwin),,echo "INPUT(libsoftmetal.so.0 -lBlocksRuntime $$(realpath $$(gcc -print-file-name=libobjc.so)))" >$@)

# Without optimisation a test or example is compiled in half the time. The implementation that most are linked with has all of
# it.
quickly = $(if $(filter file,$(origin CFLAGS)),-O0)

$(BUILD)/gpusync_impl.o: tests/compile/implementation.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) $(test_flags)

# The tests' implementation has the assertions of tests/locks.h: the order of locks, and what may happen under each. And
# the probes, which are compiled with it.
$(BUILD)/tests/gpusync_impl.o: tests/compile/inside.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) -include tests/locks.h $(test_flags) $(cmocka_flags)

$(BUILD)/tests/%.o: tests/%.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) $(quickly) -include tests/locks.h $(test_flags) $(cmocka_flags)

$(BUILD)/bench/%.o: tests/bench/%.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) $(test_flags)

# The program of README.md: the block of C that has a main
$(BUILD)/readme.c: README.md $(BUILD)/flags
	awk '/^```c$$/ { inside = 1; text = ""; next } /^```/ && inside { inside = 0; if (text ~ /int main/) printf "%s", text } \
		inside { text = text $$0 "\n" }' $< >$@

$(BUILD)/readme: $(BUILD)/readme.c gpusync.h $(example_lib)
	echo '  cc the program of README.md'
	$(CC) $(CFLAGS) $(SANITIZE) $(warnings) $(includes) $(example_flags) -o $@ $< $(example_lib) $(example_link) -lpthread -lm

$(BUILD)/examples/%.o: examples/%.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) $(quickly) $(example_flags)

# $(call impl_of,NAME,PLACE): gpusync_impl.o unless NAME has the implementation
impl_of = $(if $(filter $(1),$(complete)),,$(BUILD)/$(2)gpusync_impl.o)

define test_rule
$(BUILD)/tests/$(1): $(BUILD)/tests/$(1).o $(helpers:%=$(BUILD)/tests/%.o) $(call impl_of,$(1),tests/) $(SOFTMETAL_LIB)
	$$(CC) $$(CFLAGS) $$(SANITIZE) -o $$@ $$^ $$(SOFTMETAL_LDLIBS) $$(cmocka_libs) -lpthread -lm $$(test_ldflags)
$(BUILD)/device/$(1): $(BUILD)/tests/$(1).o $(helpers:%=$(BUILD)/tests/%.o) $(call impl_of,$(1),tests/)
	$$(CC) $$(CFLAGS) $$(SANITIZE) -o $$@ $$^ $$(frameworks) $$(cmocka_libs) -lpthread -lm
endef
define example_rule
$(BUILD)/examples/$(1): $(BUILD)/examples/$(1).o $(call impl_of,$(1)) $(if $(filter $(1),$(on_softmetal)),$(SOFTMETAL_LIB),$(example_lib))
	$$(CC) $$(CFLAGS) $$(SANITIZE) -o $$@ $$^ $(if $(filter $(1),$(on_softmetal)),$$(SOFTMETAL_LDLIBS),$$(example_link)) -lpthread -lm
endef
$(foreach name,$(all_tests),$(eval $(call test_rule,$(name))))
$(foreach name,$(EXAMPLES),$(eval $(call example_rule,$(name))))

$(BUILD)/examples/event_loop.o: example_flags += $(call include_of,$(uv))
$(BUILD)/examples/event_loop $(BUILD)/pretended/event_loop: example_link += $(call library_of,$(uv),uv)
$(BUILD)/tests/test_trace_json.o: test_flags += $(call include_of,$(jansson))
$(BUILD)/bench/json.o: test_flags += $(call include_of,$(jansson))
# Its functions are found by dlsym. A Mac's programs export theirs.
$(BUILD)/tests/test_bindings: test_ldflags := $(if $(darwin),,-rdynamic -ldl)
$(BUILD)/tests/test_trace_json: cmocka_libs += $(call library_of,$(jansson),jansson)

# A pretended GPU: softmetal in a library that hides its functions from programs
pretended := $(BUILD)/pretended/libpretended.so

$(BUILD)/pretended/device.o: tests/pretended/device.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) -fPIC $(test_flags)

$(pretended): $(BUILD)/pretended/device.o $(SOFTMETAL_OBJS)
	echo '{ local: softmetal_*; };' >$@.map
	$(OBJCC) -shared $(SANITIZE) -Wl,--version-script=$@.map -Wl,-soname,$(@F) -o $@ $^ $(SOFTMETAL_LDLIBS)

$(pretended_programs): $(BUILD)/pretended/%: $(BUILD)/examples/%.o $(pretended)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ -Wl,-rpath,$(abspath $(@D)) $(example_link) -lpthread -lm

# Metal over Vulkan: softmetal's runtime, in a library that hides its functions as well, and tests/vulkan's device
vulkan := $(BUILD)/vulkan/libmetal_vulkan.so
vulkan_kernels := $(patsubst %,$(BUILD)/vulkan/%.h,bench_loop step work)

$(vulkan_kernels): $(BUILD)/vulkan/%.h: tests/vulkan/kernels.comp $(BUILD)/flags
	glslangValidator --quiet -V --target-env vulkan1.2 -D$* --vn vulkan_$* -o $@ $<

$(BUILD)/vulkan/%.o: tests/vulkan/%.m $(BUILD)/flags $(vulkan_kernels)
	$(OBJCC) $(SOFTMETAL_CFLAGS) -I$(@D) -std=gnu11 -fno-objc-arc -gdwarf-4 -O2 $(softmetal_warnings) $(SANITIZE) -MMD -MP -c -o $@ $<

$(vulkan): $(patsubst tests/%.m,$(BUILD)/%.o,$(wildcard tests/vulkan/*.m)) $(SOFTMETAL_OBJS)
	echo '{ local: softmetal_*; };' >$@.map
	$(OBJCC) -shared $(SANITIZE) -Wl,--version-script=$@.map -Wl,-soname,$(@F) -o $@ $^ $(SOFTMETAL_LDLIBS) -lvulkan

vulkan_link = $(vulkan) -Wl,-rpath,$(abspath $(BUILD)/vulkan) $(SOFTMETAL_LDLIBS) $(cmocka_libs) $(call library_of,$(uv),uv) \
	$(call library_of,$(jansson),jansson) -lpthread -lm

$(BUILD)/vulkan/examples/%: $(BUILD)/examples/%.o $(vulkan)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $< $(vulkan_link)

$(BUILD)/vulkan/beliefs: $(BUILD)/beliefs/beliefs.o $(vulkan)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $< $(vulkan_link)

$(BUILD)/vulkan/test_portable $(BUILD)/vulkan/stress: %: %.o $(BUILD)/gpusync_impl.o $(vulkan)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $(filter %.o,$^) $(vulkan_link)

$(BUILD)/vulkan/bench_gpu: $(bench_gpu:%=$(BUILD)/bench/%.o) $(BUILD)/gpusync_impl.o $(vulkan)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $(filter %.o,$^) $(vulkan_link)

$(BUILD)/vulkan/test_portable.o: tests/test_portable.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) $(test_flags) $(cmocka_flags)

$(BUILD)/vulkan/stress.o: tests/vulkan/stress.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) $(test_flags) $(cmocka_flags)

$(BUILD)/tests/known_red/known_red: $(BUILD)/tests/known_red/known_red.o $(SOFTMETAL_LIB)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(SOFTMETAL_LDLIBS) $(cmocka_libs) -lpthread -lm

$(BUILD)/fuzz/fuzz_calls.h: gpusync.h tests/fuzz/calls.sh $(BUILD)/flags
	tests/fuzz/calls.sh $< >$@

$(BUILD)/fuzz/%: tests/fuzz/%.c $(BUILD)/fuzz/fuzz_calls.h $(SOFTMETAL_LIB)
	echo '  cc $<'
	$(fuzz_compile) -I$(BUILD)/fuzz -MMD -MP -MF $@.d -MT $@ -o $@ $< $(SOFTMETAL_LIB) $(fuzz_libs)

$(BUILD)/bench/bench: $(bench:%=$(BUILD)/bench/%.o) $(call impl_of,$(bench)) $(SOFTMETAL_LIB)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(SOFTMETAL_LDLIBS) $(call library_of,$(jansson),jansson) -lpthread -lm

$(BUILD)/bench/spin: $(BUILD)/bench/spin.o $(SOFTMETAL_LIB)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(SOFTMETAL_LDLIBS) -lpthread -lm

$(BUILD)/beliefs/%.o: tests/beliefs/%.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) $(test_flags)

$(BUILD)/beliefs/beliefs: $(BUILD)/beliefs/beliefs.o $(SOFTMETAL_LIB)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(SOFTMETAL_LDLIBS) -lpthread -lm

$(BUILD)/device/beliefs: $(BUILD)/beliefs/beliefs.o
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(frameworks) -lpthread -lm

$(BUILD)/device/bench: $(bench_device:%=$(BUILD)/bench/%.o) $(call impl_of,$(bench_device))
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(frameworks) $(call library_of,$(jansson),jansson) -lpthread -lm

-include $(wildcard $(BUILD)/*.d $(BUILD)/tests/*.d $(BUILD)/tests/known_red/*.d $(BUILD)/fuzz/*.d \
	$(BUILD)/examples/*.d $(BUILD)/bench/*.d $(BUILD)/beliefs/*.d $(BUILD)/pretended/*.d $(BUILD)/vulkan/*.d)

include tests/next/next.mk
