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
softmetal_warnings = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wno-unused-parameter -Wno-deprecated-declarations

# $(call softmetal_once,VARIABLE,value): the value of VARIABLE is worked out at its first use.
softmetal_once = $(eval $(1) := $(2))$($(1))

ifeq ($(shell uname -s),Darwin)

# Messages are messages, so that softmetal_internal.h can lead them past the program's objc_msgSend: no call of
# objc_retain in place of one and, where the compiler knows them (Apple's from Xcode 14 on), no stubs of the linker's.
SOFTMETAL_CFLAGS = $(call softmetal_once,SOFTMETAL_CFLAGS,-fblocks -fno-objc-convert-messages-to-runtime-calls \
	$(shell $(OBJCC) $(softmetal_no_stubs) -x objective-c -fsyntax-only /dev/null 2>/dev/null && echo $(softmetal_no_stubs)))
softmetal_no_stubs = -fno-objc-msgsend-selector-stubs
# The archive comes before the system's libraries: a name that both have is softmetal's in the program, and in the system
# the system's (unverified: the linker takes the first of its command line, and names have two levels).
SOFTMETAL_LDLIBS = -framework Foundation -lobjc

else

softmetal_sources += $(addprefix $(SOFTMETAL_DIR)/,linux_runtime.m linux_lock.m)
softmetal_warnings += -Werror

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

SOFTMETAL_OBJS = $(patsubst $(SOFTMETAL_DIR)/%.m,$(SOFTMETAL_OUT)/%.o,$(softmetal_sources)) \
	$(SOFTMETAL_OUT)/softmetal_msgsend.o

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
