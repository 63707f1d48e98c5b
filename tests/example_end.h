/* example_end.h - takes back the macros of example_run.h: included behind the example */
#undef printf
#undef fprintf
