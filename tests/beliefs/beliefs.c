/* beliefs.c - the probes as a program: prints the device and the answers, in Markdown

   tests/on-a-mac.sh runs it, on the Metal device that there is. It uses nothing of softmetal's panel. Call it by a path
   with a slash in it: it starts itself again for each probe. The exit status is 0 whatever Metal does. */
#define GPUSYNC_IMPLEMENTATION
#include "../../gpusync.h"

#include "probes.h"

/* In a child. */
static void describe_device(void)
{
    void *metal = metal_device_new();
    char text[128] = "none";
    if (metal)
        metal_string_copy(metal_get_retained(metal, "name"), text, sizeof text);
    printf("GPU: %s\n\n", text);
}

static unsigned held, not_held, not_tried;

/* What is told is written at once: it stays when the machine does not. */
static void print_row(size_t row)
{
    const char *verdict = answers[row].verdict, *mark = strcmp(verdict, NOT_HELD) ? "" : "**";
    held += !strcmp(verdict, HELD);
    not_held += !strcmp(verdict, NOT_HELD);
    not_tried += !strcmp(verdict, NOT_TRIED);
    printf("| %s | %s | %s%s%s | %s | %s |\n", rows[row].name, rows[row].text, mark, verdict, mark, answers[row].text,
           rows[row].otherwise);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    own_path = arguments[0];
    if (count == 2 && !strcmp(arguments[1], "--device")) {
        describe_device();
        return 0;
    }
    if (count == 3 && !strcmp(arguments[1], "--probe"))
        run_probe(arguments[2]);
    if (fork() == 0) {
        alarm(30); /* Metal may hang before it knows its device */
        execl(own_path, own_path, "--device", (char *)NULL);
        _exit(127);
    }
    wait(NULL);
    printf("| | belief | | measured | if it is wrong |\n|---|---|---|---|---|\n");
    ask_all(become_probe, print_row);
    printf("\n%u held, %u NOT held, %u not tried\n", held, not_held, not_tried);
    return 0;
}
