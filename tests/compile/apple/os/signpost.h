/* os/signpost.h - a stand-in for Apple's, see os/log.h. Name and format have to be literals, as there; the arguments have
   to fit the format. */
#ifndef STAND_IN_OS_SIGNPOST_H
#define STAND_IN_OS_SIGNPOST_H

#include <os/log.h>
#include <stdbool.h>
#include <stdint.h>

typedef uint64_t os_signpost_id_t;
extern bool os_signpost_enabled(os_log_t log);
extern os_signpost_id_t os_signpost_id_generate(os_log_t log);
extern void stand_in_signpost(os_log_t log, os_signpost_id_t id, const char *name, const char *format, ...)
    __attribute__((format(os_log, 4, 5)));
#define os_signpost_interval_begin(log, id, name, ...) stand_in_signpost(log, id, "" name, "" __VA_ARGS__)
#define os_signpost_interval_end(log, id, name, ...) stand_in_signpost(log, id, "" name, "" __VA_ARGS__)

#endif
