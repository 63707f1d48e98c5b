/* beliefs.c - the probes as a program: prints the device and the answers, in Markdown

   tests/on-a-mac.sh runs it, on the Metal device that there is. It uses nothing of softmetal's panel, so it is the same
   program on softmetal. Call it by a path with a slash in it: it starts itself again for each probe. */
#define GPUSYNC_IMPLEMENTATION
#include "../../gpusync.h"

#include "probes.h"

static void become_description(void)
{
    alarm(DEVICE_LIMIT_S); /* of this process, whatever program it runs: Metal may hang before it knows its device */
    execl(own_path, own_path, "--device", (char *)NULL);
    _exit(127);
}

int main(int count, char **arguments)
{
    char text[64];
    int status;
    pid_t child;
    own_path = arguments[0];
    if (count == 2 && !strcmp(arguments[1], "--device")) {
        describe_device();
        return 0;
    }
    if (count == 3 && !strcmp(arguments[1], "--probe")) run_probe(arguments[2]);
    child = fork();
    if (child == 0) become_description();
    if (waitpid(child, &status, 0) != child || status != 0) {
        how_it_ended(status, DEVICE_LIMIT_S, text, sizeof text);
        printf("The device could not be described: that %s.\n\n", text);
    }
    print_heading();
    ask_all(become_probe, false, print_row);
    print_counts();
    return 0;
}
