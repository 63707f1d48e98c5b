/* os/log.h - a stand-in for Apple's: what examples/signposts.h takes from it. It proves no more than that they agree. */
#ifndef STAND_IN_OS_LOG_H
#define STAND_IN_OS_LOG_H

typedef struct os_log_s *os_log_t;
extern os_log_t os_log_create(const char *subsystem, const char *category);

#endif
