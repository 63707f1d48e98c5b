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
TIME ?= 60
darwin := $(filter Darwin,$(shell uname -s))
comma := ,
VERSION := $(shell sed -n 's/^.define GPUSYNC_VERSION_M[AI][JN]OR *//p; s/^.define GPUSYNC_VERSION_PATCH *//p' \
	gpusync.h | paste -s -d. -)

# What runs on Linux alone says so elsewhere, before anything is installed or built.
linux_only := $(filter check bench-frame bench-spin bench-wake fuzz test-%,$(MAKECMDGOALS))
ifneq ($(and $(darwin),$(linux_only)),)
$(error $(firstword $(linux_only)): Linux only)
endif

# Without a -j a target that compiles many files uses all cores. The make of macOS, 3.81, is left as it is: it would take
# this for more than the -j that it is given.
ifneq ($(if $(word 2,$(MAKECMDGOALS)),,$(filter test examples,$(MAKECMDGOALS))),)
ifeq ($(MAKELEVEL)$(filter -j% 3.%,$(MAKEFLAGS) $(MAKE_VERSION)),0)
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
endif
endif

# ------------------------------------------------------------------------------------------- what is missing

# tests/deps.sh installs what a target needs and this machine lacks. It runs before all else: the rules below ask the
# installed programs for their options.
needy := $(if $(findstring n,$(firstword -$(MAKEFLAGS))),,$(filter-out help install dist check test-model,$(MAKECMDGOALS)))
ifneq ($(if $(needy),$(shell BUILD='$(abspath $(BUILD))' SANITIZE='$(SANITIZE)' tests/deps.sh $(needy) >&2 || echo failed)),)
$(error something is missing, see above)
endif

# --------------------------------------------------------------------------------------- compilers and options

# Apple's make has no OBJC of its own, GNU's says gcc. The sanitizers are clang's.
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

# A directory for each compiler and sanitizer, so that their objects do not mix
top := $(patsubst $(CURDIR)/%,%,$(BUILD))
sanitizers := $(SANITIZE)
override BUILD := $(top)/$(notdir $(firstword $(CC)))$(if $(sanitizers),-$(subst $(comma),-,$(sanitizers)))
override SANITIZE := $(if $(sanitizers),-fsanitize=$(sanitizers) -fno-sanitize-recover=all -fno-omit-frame-pointer)

# DWARF 4 is what valgrind up to 3.19 can read of clang's objects. _XOPEN_SOURCE is for ucontext, which Apple deprecates.
warnings := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Wno-nonnull -Wstrict-prototypes $(if $(WERROR),-Werror)
includes := -I. -Itests -Itests/softmetal -Iexamples
test_flags := -std=c11 -Wno-unused-parameter $(if $(darwin),-D_XOPEN_SOURCE=700 -D_DARWIN_C_SOURCE= \
	-Wno-deprecated-declarations,-gdwarf-4 -D_GNU_SOURCE -DGPUSYNC_OBJC=1)
example_flags := -std=c99 $(if $(darwin),,-gdwarf-4 -D_POSIX_C_SOURCE=200809L -DGPUSYNC_OBJC=1)
frameworks := -framework Metal -framework CoreGraphics -framework Foundation -lobjc

# cmocka 2 deprecates assert_in_range, and cmocka 1 has no other. Homebrew is where no compiler looks. gold links fast.
brew := $(wildcard /opt/homebrew)
cmocka_flags := -DCMOCKA_DISABLE_DEPRECATION_WARNINGS $(brew:%=-isystem %/include)
libraries := $(if $(darwin),$(brew:%=-L%/lib),$(if $(sanitizers),,$(if $(shell command -v ld.gold),-fuse-ld=gold)))
has = $(firstword $(wildcard $(addsuffix /include/$(1),/usr /usr/local $(brew))))

# What clang's sanitizers are told. Their reports count as failures, also where a program goes on.
export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=$(if $(darwin),0,1)
export LSAN_OPTIONS ?= suppressions=$(CURDIR)/tests/softmetal/lsan.supp:print_suppressions=0
export TSAN_OPTIONS ?= suppressions=$(CURDIR)/tests/softmetal/tsan.supp:history_size=5:second_deadlock_stack=1
export UBSAN_OPTIONS ?= print_stacktrace=1

OBJCC := $(OBJC)
include tests/softmetal/build.mk

# Examples run on the machine's own Metal where there is one. Those that include softmetal.h are tests: they do not.
example_lib = $(if $(darwin),,$(SOFTMETAL_LIB))
example_link = $(if $(darwin),-framework QuartzCore $(frameworks),$(SOFTMETAL_LDLIBS))

# What the scripts of tests/ build with
tools = CC='$(CC)' BUILD='$(abspath $(BUILD))' SOFTMETAL_LINK='$(abspath $(SOFTMETAL_LIB)) $(SOFTMETAL_LDLIBS)' RUN='$(RUN)'

# ------------------------------------------------------------------------------------------------- the programs

all_tests := $(sort $(basename $(notdir $(wildcard tests/test_*.c))))
complete := $(basename $(notdir $(shell grep -l '^ *\# *define *GPUSYNC_IMPLEMENTATION' tests/test_*.c)))
# In test_atomics* each atomic operation is a point of turns.h: gcc compiles them for ThreadSanitizer, and
# turns_atomics.c takes the place of its runtime. So they can have no other sanitizer, and a Mac's compiler cannot do it.
# Where threads take turns the real ThreadSanitizer has nothing to find: each turn is handed on under a lock.
atomics := $(filter test_atomics%,$(all_tests))
left_out := $(if $(darwin)$(sanitizers),$(atomics)) $(if $(findstring thread,$(sanitizers)),$(filter test_turns%,$(all_tests))) $(if $(call has,uv.h),,test_ports)
TESTS ?= $(filter-out $(left_out),$(all_tests))
left_out_examples := $(if $(call has,uv.h),,event_loop)
EXAMPLES ?= $(sort $(filter-out $(left_out_examples),$(basename $(notdir $(wildcard examples/*.c)))))
test_programs := $(TESTS:%=$(BUILD)/tests/%)
example_programs := $(EXAMPLES:%=$(BUILD)/examples/%)
tell_left_out := $(if $(strip $(left_out) $(left_out_examples)),echo 'left out: $(strip $(left_out) $(left_out_examples))')

# ------------------------------------------------------------------------------------------- what users call

help: ## this text
	echo 'gpusync $(VERSION). Targets:'
	sed -n 's/^\([a-z]*\):.*## \(.*\)/\1 \2/p' Makefile | while read -r target text; do \
		printf '  %-10s %s\n' "$$target" "$$text"; done
	echo 'Those for work on gpusync itself, and what they take, stand in tests/README.md.'

run: $(BUILD)/examples/quickstart ## build and run examples/quickstart.c: ways to wait, a failure, a limit
	$(RUN) $< || test $$? -eq 77 # skipped, with the reason

test: $(test_programs) $(example_programs) ## build and run all tests; ends with "N passed, N failed"
	$(tell_left_out)
	RUN='$(RUN)' tests/run.sh $(test_programs) --examples $(example_programs)

check: ## all that CI checks on Linux: tests, sanitizers, compilers and standards, costs, the pages
	V='$(V)' BUILD='$(abspath $(top))' .ci/run

# On Linux -lsoftmetal is enough, for a program in any language: it is a linker script that names the shared library, and
# the runtimes whose symbols gpusync.h uses itself. On a Mac a program keeps the system's libdispatch.
softmetal_for_users := $(top)/softmetal$(if $(sanitizers),-$(subst $(comma),-,$(sanitizers)))/libsoftmetal.$(if $(darwin),a,so)
supp := suppressions=$(CURDIR)/tests/softmetal
tell_sanitizer := 'export TSAN_OPTIONS=$(supp)/tsan.supp LSAN_OPTIONS=$(supp)/lsan.supp'
user_flags = $(if $(sanitizers), -fsanitize=$(sanitizers) -fno-omit-frame-pointer -g)
softmetal: $(softmetal_for_users) ## build the software device for programs of your own; prints what they compile and link with
	printf '%s\n' "export SOFTMETAL='$(abspath $(<D))'" \
		$(if $(sanitizers),'export CC=$(OBJC) CXX=$(subst clang,clang++,$(OBJC))' $(tell_sanitizer)) \
		'export CPPFLAGS="-DGPUSYNC_OBJC=1 -I$$SOFTMETAL$(user_flags)"' \
		'export LDLIBS="$(if $(darwin),$(abspath $<) $(SOFTMETAL_LDLIBS),-L$$SOFTMETAL -lsoftmetal -Wl$(comma)-rpath$(comma)$$SOFTMETAL -lpthread)$(user_flags)"'

examples: $(example_programs) ## build the examples
	$(tell_left_out)
	echo 'built: $(example_programs)'

# -------------------------------------------------------------------------------------- for work on gpusync itself

bench bench-frame bench-spin bench-wake test-counts test-growth: $(SOFTMETAL_LIB)
	$(tools) ROWS='$(ROWS)' tests/bench/$(patsubst bench-%,%,$(patsubst test-%,%,$@)).sh

test-mutants: $(test_programs)
	$(tools) TESTS='$(TESTS)' JOBS='$(JOBS)' tests/mutants/mutants.sh $(ONLY)

test-vulkan: $(SOFTMETAL_LIB)
	$(tools) SOFTMETAL_OBJS='$(SOFTMETAL_OBJS)' SANITIZE='$(SANITIZE)' tests/vulkan/vulkan.sh

test-macho test-model: test-%: | $(top)/.gitignore
	BUILD='$(abspath $(top))' SOFTMETAL_LDLIBS='$(SOFTMETAL_LDLIBS)' tests/$*/$*.sh $(MACHO_ARCH) $(ROWS)

fuzz:
	BUILD='$(abspath $(top))' TIME='$(TIME)' SEED='$(SEED)' INPUT='$(INPUT)' RUN='$(RUN)' tests/fuzz/fuzz.sh

beliefs: $(BUILD)/beliefs/beliefs
	echo 'built: $<'

# Packages are in lib, not in share: Homebrew's pkg-config looks into /usr/local/lib alone.
package := lib/cmake/gpusync
licence := share/licenses/gpusync/LICENSE
installed := include/gpusync.h lib/pkgconfig/gpusync.pc $(package)/gpusyncConfig.cmake \
	$(package)/gpusyncConfigVersion.cmake $(licence)
place = '$(subst ','\'',$(DESTDIR)$(PREFIX))'
fill_in = sed -e 's/@VERSION@/$(VERSION)/' -e 's/@LIBS@/$(if $(darwin),$(frameworks))/'
licence_text = sed -n -e '/^ *SPDX-License-Identifier/,$$ { s/^   //; s, \*/$$,,; p; }' gpusync.h

install: ## install the header with pkg-config and CMake files into $(DESTDIR)$(PREFIX)
	umask 022 && for folder in $(sort $(dir $(installed))); do mkdir -p $(place)/$$folder || exit; done
	install -m 644 gpusync.h $(place)/include/gpusync.h
	install -m 644 examples/with/cmake/gpusyncConfig.cmake $(place)/$(package)/gpusyncConfig.cmake
	$(fill_in) examples/with/cmake/gpusyncConfigVersion.cmake.in >$(place)/$(package)/gpusyncConfigVersion.cmake
	$(fill_in) examples/with/pkg-config/gpusync.pc.in >$(place)/lib/pkgconfig/gpusync.pc
	$(licence_text) >$(place)/$(licence)
	cd $(place) && chmod 644 $(installed)
	for file in $(installed); do printf 'installed: %s\n' $(place)/$$file; done

dist: release := $(top)/dist/gpusync-$(VERSION)
dist:
	changes=$$(git status --porcelain) && test -z "$$changes" || \
		{ printf '%s\n' 'make dist: a release is a commit. Commit these first:' "$$changes" >&2; exit 1; }
	rm -rf '$(top)/dist'
	mkdir -p '$(top)/dist'
	test -e '$(top)/.gitignore' || echo '*' >'$(top)/.gitignore'
	$(licence_text) >'$(top)/dist/LICENSE' # packagers look for it there
	git -c tar.umask=0022 archive --format=tar --prefix=gpusync-$(VERSION)/ --add-file='$(top)/dist/LICENSE' HEAD >'$(release).tar'
	rm '$(top)/dist/LICENSE'
	gzip -9n '$(release).tar'
	cp gpusync.h '$(release).h'
	cd '$(top)/dist' && $(if $(darwin),shasum -a 256,sha256sum) gpusync-$(VERSION).* >SHA256SUMS && cat SHA256SUMS

.PHONY: help run test check softmetal examples bench bench-frame bench-spin bench-wake test-counts test-growth test-mutants test-vulkan test-macho \
	test-model fuzz beliefs install dist force

# ------------------------------------------------------------------------------------------------------- rules

$(top)/.gitignore:
	mkdir -p $(top)
	echo '*' > $@

# Changes when the compiler or its options do, and then everything is compiled again.
flags := $(CC) $(CFLAGS) $(SANITIZE) $(warnings) $(test_flags)
$(BUILD)/flags: force | $(top)/.gitignore
	mkdir -p $(addprefix $(BUILD)/,tests/beliefs examples beliefs)
	echo '$(flags)' | cmp -s - $@ || echo '$(flags)' > $@

$(SOFTMETAL_OBJS): $(BUILD)/flags

$(softmetal_for_users): $(SOFTMETAL_OBJS) tests/softmetal/softmetal.h Makefile
	mkdir -p $(@D)
	cp tests/softmetal/softmetal.h $(@D)/
	$(if $(darwin),rm -f $@; $(AR) rcs $@ $(filter-out %/softmetal_libdispatch.o,$(SOFTMETAL_OBJS)),$(OBJC) -shared \
		$(SANITIZE) -Wl$(comma)-soname$(comma)$(@F).0 -o $@.0 $(SOFTMETAL_OBJS) $(SOFTMETAL_LDLIBS))
	$(if $(darwin),,echo "INPUT(libsoftmetal.so.0 -lBlocksRuntime $$(realpath $$(gcc -print-file-name=libobjc.so)))" >$@)

# Without optimisation a program is compiled in a fraction of the time. The implementation that most tests are linked with
# has all of it, and so has each that a sanitizer would make too slow. CFLAGS='-O2 -g' optimises everything.
optimised := implementation $(if $(sanitizers),$(complete))
quickly = $(if $(filter $(optimised),$*),,$(if $(filter file,$(origin CFLAGS)),-O0))
compile = $(CC) $(CFLAGS) $(SANITIZE) $(quickly) $(warnings) $(includes) -MMD -MP -c -o $@ $<
compile_atomics = gcc -O1 -g -gdwarf-4 -fsanitize=thread -Wno-tsan $(warnings) $(includes) -MMD -MP -c -o $@ $<

$(BUILD)/tests/%.o: tests/%.c $(BUILD)/flags
	echo '  cc $<'
	$(if $(filter test_atomics%,$*),$(compile_atomics),$(compile)) $(test_flags) $(cmocka_flags)

$(BUILD)/examples/%.o: examples/%.c $(BUILD)/flags
	echo '  cc $<'
	$(compile) $(example_flags)

# Out of the archive a program gets what it lacks: kit and main, and the implementation, unless it has one of its own.
$(BUILD)/tests/libkit.a: $(BUILD)/tests/kit.o $(BUILD)/tests/from.o $(BUILD)/tests/implementation.o
	rm -f $@
	$(AR) rcs $@ $^

define test_rule
$(BUILD)/tests/$(1): $(BUILD)/tests/$(1).o $(if $(filter $(1),$(atomics)),$(BUILD)/tests/turns_atomics.o) \
		$(BUILD)/tests/libkit.a $(SOFTMETAL_LIB)
	$$(CC) $$(CFLAGS) $$(SANITIZE) -o $$@ $$^ $$(SOFTMETAL_LDLIBS) $(libraries) $$(uv) -lcmocka -lpthread -lm
endef
$(foreach name,$(all_tests),$(eval $(call test_rule,$(name))))

$(BUILD)/tests/test_ports $(BUILD)/examples/event_loop: uv := -luv
$(BUILD)/examples/%: $(BUILD)/examples/%.o $(SOFTMETAL_LIB)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $< $(if $(shell grep -l '^# *include "softmetal.h"' examples/$*.c),$(SOFTMETAL_LIB) \
		$(SOFTMETAL_LDLIBS),$(example_lib) $(example_link)) $(libraries) $(uv) -lpthread -lm

$(BUILD)/beliefs/beliefs: $(BUILD)/tests/beliefs/beliefs.o $(example_lib)
	$(CC) $(CFLAGS) $(SANITIZE) -o $@ $^ $(example_link) -lpthread -lm

-include $(wildcard $(addprefix $(BUILD)/,tests/*.d tests/beliefs/*.d examples/*.d))
