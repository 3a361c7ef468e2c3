# SPDX-License-Identifier: Apache-2.0
#
# Compiler flags of the C core, read by csrc/Makefile and by tools/build_core.py: `NAME := words`,
# nothing else.
#
# No -march: what depends on the CPU is chosen at run time. _GNU_SOURCE is empty, as it is in a file
# that defines it for itself. Texts for people (errors, notes) are cut to their buffers on purpose:
# hence -Wno-format-truncation.
# -fno-strict-aliasing: gcc 12 keeps a list head in a register across a store through a node of that
# list (seen in sched.c); the kernel builds its intrusive lists the same way.
CHM_CFLAGS := -D_GNU_SOURCE= -std=gnu11 -O2 -g -fno-semantic-interposition -fno-strict-aliasing
CHM_WARNINGS := -Wall -Wextra -Wconversion -Wmissing-prototypes -Wstrict-prototypes -Wshadow -Wvla \
    -Wno-format-truncation
CHM_LIBS := -pthread
CHM_LIBURING_MIN := 2.3
CHM_XXHASH_MIN := 0.8.0
CHM_SAN_address := -fsanitize=address,undefined -fno-sanitize-recover=all \
    -fno-omit-frame-pointer -O1
CHM_SAN_thread := -fsanitize=thread -fno-omit-frame-pointer -O1
