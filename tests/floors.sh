#!/usr/bin/env bash
# floors.sh - a program that commits and waits links nothing of the second floor
#
# Links a program that calls all of the ground floor, as a linker does that drops what nothing refers to, with gcc and with
# clang, at -O0 (where nothing is inlined) and -O2. Names each function behind >>second in gpusync.h that is left. Prints
# nothing when there is none. The program has a log function. The report is of the second floor: it is linked where a program
# calls it, as in its log function. BUILD: where the programs are made.

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.."
dir=${BUILD:-$PWD/build}/floors
rm -rf "$dir"
mkdir -p "$dir"

cat >"$dir/head.c" <<'EOF'
#define GPUSYNC_STATIC
#define GPUSYNC_OBJC 1
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
static void done(void *user, gpusync_result result, const gpusync_error *error) { *(gpusync_result *)user = result; (void)error; }
static void line(void *user, gpusync_log_level level, const char *text) { *(const char **)user = level ? text : 0; }
EOF
cat "$dir/head.c" - >"$dir/ground.c" <<'EOF'
int main(void)
{
    gpusync_device_desc desc = {0};
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    gpusync_point point;
    gpusync_ticket_info info;
    gpusync_error error;
    gpusync_stats stats;
    gpusync_result result;
    uint64_t cursor = GPUSYNC_FROM_NOW;
    size_t count;
    void *buffer;
    desc.log = line; /* waits that time out write to it */
    desc.log_user = &device;
    if (gpusync_device_create(&desc, &device) || gpusync_queue_create(device, NULL, &queue)) return 1;
    if (gpusync_command_buffer(queue, NULL, &buffer) || gpusync_command_buffer_discard(queue, buffer)) return 1;
    if (gpusync_commit(queue, buffer, &ticket) || gpusync_poll(queue, ticket)) return 1;
    if (gpusync_track(queue, buffer, &ticket) || gpusync_untrack(queue, ticket)) return 1;
    point = gpusync_at_ticket(queue, ticket);
    if (gpusync_wait(queue, ticket, 0) || gpusync_wait_ex(queue, ticket, 0, NULL)) return 1;
    if (gpusync_queue_wait(queue, 0) || gpusync_device_wait(device, 0, NULL)) return 1;
    if (gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, 0, NULL, NULL)) return 1;
    if (gpusync_on_done(point, done, &result) || gpusync_release_after(point, buffer)) return 1;
    if (gpusync_dispatch(device, 1, &count) || gpusync_next_error(queue, &cursor, &error)) return 1;
    if (gpusync_failure_is_transient(error.failure)) return 1;
    if (gpusync_get_info(queue, ticket, &info) || gpusync_get_stats(queue, &stats)) return 1;
    if (gpusync_device_get_stats(device, &stats) || gpusync_device_is_lost(device)) return 1;
    if (gpusync_queue_clear_failure(queue) || gpusync_in_flight(queue)) return 1;
    if (gpusync_queue_destroy_now(queue) || gpusync_queue_destroy(queue)) return 1;
    if (gpusync_queue_destroy_later(queue, NULL, NULL) || gpusync_device_destroy_later(device, NULL, NULL)) return 1;
    return gpusync_device_destroy(device);
}
EOF
cat "$dir/head.c" - >"$dir/second.c" <<'EOF'
int main(void) { return gpusync_submit(NULL, NULL, NULL) || gpusync_timeline_create(NULL, NULL, NULL); }
EOF

cat "$dir/head.c" - >"$dir/report.c" <<'EOF'
static void tell(void *user, gpusync_log_level level, const char *text)
{
    char report[4096];
    (void)gpusync_queue_report(*(gpusync_queue **)user, report, sizeof report);
    line(user, level, report[0] ? report : text);
}
int main(void)
{
    gpusync_device_desc desc = {0};
    gpusync_queue *queue = NULL;
    gpusync_device *device;
    desc.log = tell;
    desc.log_user = &queue;
    return gpusync_device_create(&desc, &device);
}
EOF

# What is defined behind the border, but for the stubs, which are for programs without Metal.
sed -n '/>>second --$/,/>>stubs --$/p' gpusync.h | sed 's/__attribute__((.*)) //' |
    sed -n 's/^[A-Za-z][^(]*\b\(gpusync_[a-z0-9_]*\)(.*/\1/p' | sort -u >"$dir/names"

reached() { # PROGRAM COMPILER LEVEL: functions of the second floor that the linker keeps
    "$2" "$3" -w -D_GNU_SOURCE -I. -ffunction-sections -fdata-sections -c -o "$dir/$1.o" "$dir/$1.c"
    ld -r --gc-sections -e main -o "$dir/$1" "$dir/$1.o"
    nm "$dir/$1" | awk '{ print $NF }' | sed 's/\..*//' | sort -u | comm -12 - "$dir/names"
}

for compiler in gcc clang; do
    for level in -O0 -O2; do
        reached ground "$compiler" "$level" | sed "s/\$/ is linked by $compiler $level/"
    done
    # A program of the second floor links these, and functions of their own: else the border, or what is behind it, is not seen.
    reached second "$compiler" -O0 >"$dir/reached"
    for name in gpusync_submit gpusync_timeline_create 'gpusync__.*'; do
        grep -qx "$name" "$dir/reached" || echo "$compiler: $name is linked, and not seen"
    done
    # The report is linked by its name alone, and brings no call that makes, submits or signals.
    reached report "$compiler" -O0 >"$dir/reached"
    for name in gpusync_queue_report gpusync__write_queue gpusync__write_submission; do
        grep -qx "$name" "$dir/reached" || echo "$compiler: $name is linked by gpusync_queue_report, and not seen"
    done
    grep -E '^gpusync_[a-z]' "$dir/reached" | grep -vx gpusync_queue_report |
        sed "s/\$/ is linked by $compiler with gpusync_queue_report/" || true
done
