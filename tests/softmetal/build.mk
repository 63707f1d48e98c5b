# build.mk - builds softmetal as a static archive; include it from a Makefile
#
# Set before the include
#   BUILD      output directory                                  (default build)
#   SANITIZE   e.g. -fsanitize=thread, or empty
#   OBJCC      an Objective-C compiler with blocks               (default clang)
# Provides
#   SOFTMETAL_LIB      $(BUILD)/libsoftmetal.a, with its rules: make programs depend on it
#   SOFTMETAL_CPPFLAGS for C files that include softmetal.h
#   SOFTMETAL_LDLIBS   what a C program links after its own objects, with clang or gcc
# A program's own link needs $(SANITIZE) too, from the compiler that gave it its name.
# Paths are asked for when they are first used, and once.

BUILD ?= build
OBJCC ?= clang

SOFTMETAL_DIR := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
SOFTMETAL_OUT = $(BUILD)/softmetal
SOFTMETAL_LIB = $(BUILD)/libsoftmetal.a
SOFTMETAL_CPPFLAGS = -I$(SOFTMETAL_DIR)

softmetal_sources := $(sort $(wildcard $(SOFTMETAL_DIR)/softmetal*.m))
softmetal_warnings = -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wno-unused-parameter -Wno-deprecated-declarations

# $(call softmetal_once,VARIABLE,value): the value of VARIABLE is worked out at its first use.
softmetal_once = $(eval $(1) := $(2))$($(1))

ifeq ($(shell uname -s),Darwin)

softmetal_runtime =
SOFTMETAL_CFLAGS = -fblocks
SOFTMETAL_LDLIBS = -framework Foundation -lobjc

else

softmetal_sources += $(addprefix $(SOFTMETAL_DIR)/,linux_runtime.m linux_lock.m linux_dispatch.m)
softmetal_runtime = $(SOFTMETAL_OUT)/msgsend.o

# GNUstep's flags without its choice of optimisation, warnings and dependency files; its headers, like
# the runtime's, are the system's and not ours to warn about.
softmetal_gnustep = $(filter-out -g -O% -W% -MMD -MP -I.,$(shell MAKEFLAGS= gnustep-config --objc-flags))
SOFTMETAL_CFLAGS = $(call softmetal_once,SOFTMETAL_CFLAGS,$(patsubst -I%,-isystem %,$(softmetal_gnustep)) \
	-fblocks -fobjc-runtime=gcc -isystem $(shell gcc -print-file-name=include) -isystem $(SOFTMETAL_DIR)/linux)
# gpusync.h finds MTLCopyAllDevices by its name, as iOS has it from 18 on.
# BlocksRuntime goes first: GNUstep exports a _Block_copy of its own that copies nothing.
SOFTMETAL_LDLIBS = $(call softmetal_once,SOFTMETAL_LDLIBS,-L$(shell dirname $$(gcc -print-file-name=libobjc.so)) \
	-Xlinker --export-dynamic-symbol=MTLCopyAllDevices -lBlocksRuntime \
	$(filter-out -shared-libgcc,$(shell MAKEFLAGS= gnustep-config --base-libs)) -lobjc -lpthread)

endif

SOFTMETAL_OBJS = $(patsubst $(SOFTMETAL_DIR)/%.m,$(SOFTMETAL_OUT)/%.o,$(softmetal_sources)) $(softmetal_runtime)

# dwarf-4: valgrind cannot read the newer kind that clang writes.
$(SOFTMETAL_OUT)/%.o: $(SOFTMETAL_DIR)/%.m $(SOFTMETAL_DIR)/build.mk
	@mkdir -p $(@D)
	$(OBJCC) $(SOFTMETAL_CFLAGS) -std=gnu11 -fno-objc-arc -gdwarf-4 -O2 $(softmetal_warnings) $(SANITIZE) -MMD -MP -c -o $@ $<

$(SOFTMETAL_OUT)/%.o: $(SOFTMETAL_DIR)/%.S $(SOFTMETAL_DIR)/build.mk
	@mkdir -p $(@D)
	$(OBJCC) -gdwarf-4 -MMD -MP -c -o $@ $<

$(SOFTMETAL_LIB): $(SOFTMETAL_OBJS)
	rm -f $@
	$(AR) rcs $@ $^

-include $(wildcard $(SOFTMETAL_OUT)/*.d)
