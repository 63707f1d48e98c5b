/* locks_end.h - takes back those macros of locks.h that are for the implementation alone: included behind it */
#undef yield
#undef park
#undef unpark
#undef log
#undef trace_fn
#undef fn
#undef notify
#undef run
#undef allocate
#undef release
#undef malloc
#undef posix_memalign
#undef sched_yield
