# fuzz.mk - builds $(BUILD)/fuzz, for fuzz.sh: softmetal with the sanitizers, and the program of fuzz.c
# HEADER: a folder with another gpusync.h, that the fuzzer is to find faults in

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
include tests/softmetal/build.mk

# The branches of the header and of the model guide the fuzzer, those of the kit and of softmetal do not.
guided := $(BUILD)/fuzz.o
flags = -O1 -g -gdwarf-4 -std=c11 -D_GNU_SOURCE -DGPUSYNC_OBJC=1 -DCMOCKA_DISABLE_DEPRECATION_WARNINGS $(SANITIZE) \
	$(if $(HEADER),-I$(HEADER)) -I. -Itests -Itests/softmetal -Iexamples -Wall -Wextra -Wno-nonnull -Wno-unused-parameter \
	-MMD -MP

$(BUILD)/fuzz: $(guided) $(BUILD)/kit.o $(SOFTMETAL_LIB)
	clang $(SANITIZE) -fsanitize=fuzzer -o $@ $^ $(SOFTMETAL_LDLIBS) -lcmocka -lpthread -lm

$(guided): flags += -fsanitize=fuzzer-no-link
$(BUILD)/fuzz.o: tests/fuzz/fuzz.c
$(BUILD)/kit.o: tests/kit.c
$(guided) $(BUILD)/kit.o: tests/fuzz/fuzz.mk
	clang $(flags) -c -o $@ $(filter %.c,$^)

.DEFAULT_GOAL := $(BUILD)/fuzz
-include $(wildcard $(BUILD)/*.d)
