# next.mk - the tests of tests/next, and the header there: Makefile includes this behind its own rules
#
#   make test-next      builds and runs tests/next/test_*.c; ends with "N passed, N failed"
#   make next-compile   every compiler, standard, way of including (Linux)
#   make next-counts    instructions of the calls beside those of the header at the top, against limits (Linux)
#   make run NEXT=1     tests/next/quickstart.c, with the header of tests/next
#
# TESTS names some of the tests. CC, CFLAGS, SANITIZE, BUILD, RUN, JOBS count as for make test; TIME_LIMIT, TURNS_SEEDS
# and GRAPHS reach the programs by the environment.

next := $(BUILD)/next
next_all := $(sort $(basename $(notdir $(wildcard tests/next/test_*.c))))
# Programs with the implementation in them are compiled with all optimisation.
next_complete := implementation $(basename $(notdir $(shell grep -l '^ *\# *define *GPUSYNC_IMPLEMENTATION' \
	$(wildcard tests/next/test_*.c) /dev/null)))
# In test_atomics* each atomic operation is a point of turns.h: gcc compiles them for ThreadSanitizer, and
# turns_atomics.c takes the place of its runtime. So they can have no other sanitizer. Where threads take turns the real
# ThreadSanitizer has nothing to find: each turn is handed on under a lock.
next_atomics := $(filter test_atomics%,$(next_all))
next_left_out := $(if $(darwin)$(sanitizers),$(next_atomics)) \
	$(if $(findstring thread,$(sanitizers)),$(filter test_turns%,$(next_all)))
next_tests := $(filter-out $(next_left_out),$(if $(filter file,$(origin TESTS)),$(next_all),$(TESTS)))
next_programs := $(next_tests:%=$(next)/%)

next_includes := -Itests/next -Itests -Itests/softmetal -Iexamples
next_warnings := $(warnings) -Wstrict-prototypes
next_flags = $(next_warnings) $(next_includes) $(test_flags) $(cmocka_flags) -MMD -MP
next_compile = $(CC) $(CFLAGS) $(SANITIZE) $(if $(filter $(next_complete),$*),,$(quickly)) $(next_flags) -c -o $@ $<
next_compile_atomics = gcc -O1 -g -gdwarf-4 -fsanitize=thread -Wno-tsan $(next_flags) -c -o $@ $<

test-next: $(next_programs) ## build and run the tests of tests/next; ends with "N passed, N failed"
	$(if $(strip $(next_left_out)),echo 'left out beside this sanitizer or on a Mac: $(strip $(next_left_out))')
	$(run_tests) $^

next-compile: $(SOFTMETAL_LIB) ## every compiler, standard, way of including tests/next/gpusync.h; PARTS= some of them
	BUILD='$(abspath $(top))' V='$(V)' SOFTMETAL_LINK='$(abspath $(SOFTMETAL_LIB)) $(SOFTMETAL_LDLIBS)' \
		tests/next/compile.sh $(PARTS)

next-counts: $(SOFTMETAL_LIB) ## instructions of the calls of tests/next/gpusync.h beside gpusync.h's, against limits
	CC='$(CC)' BUILD='$(abspath $(next)/counts)' SOFTMETAL_LINK='$(abspath $(SOFTMETAL_LIB)) $(SOFTMETAL_LDLIBS)' \
		tests/next/counts.sh

ifdef NEXT
run: $(next)/quickstart
	$(RUN) $< || test $$? -eq 77 # skipped, with the reason
endif

$(next)/%.o: tests/next/%.c $(BUILD)/flags
	mkdir -p $(@D)
	echo '  cc $<'
	$(if $(filter test_atomics%,$*),$(next_compile_atomics),$(next_compile))

$(next)/quickstart: tests/next/quickstart.c tests/next/gpusync.h $(BUILD)/flags $(example_lib)
	mkdir -p $(@D)
	echo '  cc $<'
	$(CC) $(CFLAGS) $(SANITIZE) $(next_warnings) $(next_includes) $(example_flags) -o $@ $< $(example_lib) \
		$(example_link) -lpthread -lm

# Out of the archive a program gets what it lacks: the kit, and the implementation, unless it has one of its own.
$(next)/libkit.a: $(next)/kit.o $(next)/implementation.o
	rm -f $@
	$(AR) rcs $@ $^

define next_rule
$(next)/$(1): $(next)/$(1).o $(if $(filter $(1),$(next_atomics)),$(next)/turns_atomics.o) $(next)/libkit.a $(SOFTMETAL_LIB)
	$$(CC) $$(CFLAGS) $$(SANITIZE) -o $$@ $$^ $$(SOFTMETAL_LDLIBS) $$(cmocka_libs) -lpthread -lm
endef
$(foreach name,$(next_all),$(eval $(call next_rule,$(name))))

.PHONY: test-next next-compile next-counts

-include $(wildcard $(next)/*.d)
