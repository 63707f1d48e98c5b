/* players.c - threads that play the GPU: found by their names, and their processor time

   Mesa's lavapipe calls its threads that run kernels llvmpipe-0 and so on. The one that takes what is submitted has no
   name, and so that of the thread that started it. Therefore the program's thread is called DRIVER while it opens the
   device and commits the first work: tests/vulkan starts no thread there. The driver of a GPU may have threads, too, but
   none that is called llvmpipe. Then nobody plays the GPU, and all threads count as the process's. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench.h"

#define MOST_PLAYERS 64u

static struct {
    long thread;
    char name[32];
} players[MOST_PLAYERS];
static unsigned player_count;

void call_this_thread(const char *name)
{
    prctl(PR_SET_NAME, name, 0, 0, 0);
}

static FILE *open_of(long thread, const char *what)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/%s", thread, what);
    return fopen(path, "r");
}

static void read_name(long thread, char *out, size_t size)
{
    FILE *file = open_of(thread, "comm");
    if (!file || !fgets(out, (int)size, file)) out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    if (file) fclose(file);
}

void find_players(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    char name[sizeof players->name];
    bool plays = false;
    must(tasks != NULL, "/proc/self/task");
    while ((entry = readdir(tasks)) != NULL) {
        long thread = atol(entry->d_name);
        bool runs_kernels;
        read_name(thread, name, sizeof name);
        runs_kernels = strncmp(name, "llvmpipe", 8) == 0;
        plays = plays || runs_kernels;
        if (!runs_kernels && strcmp(name, DRIVER) != 0) continue;
        must(player_count < MOST_PLAYERS, "room for the driver's threads");
        players[player_count].thread = thread;
        memcpy(players[player_count++].name, name, sizeof name);
    }
    closedir(tasks);
    if (!plays) player_count = 0;
}

void print_players(void)
{
    unsigned i;
    printf("threads that play the GPU, and do not count as processor time of the process:");
    for (i = 0; i < player_count; i++) printf("%s %s", i ? "," : "", players[i].name);
    printf("%s\n", player_count ? "" : " none");
}

/* The first number of schedstat: ns on a processor. It is exact for a thread that sleeps, as these do when all is over. */
double players_us(void)
{
    double ns, all = 0;
    unsigned i;
    for (i = 0; i < player_count; i++) {
        FILE *file = open_of(players[i].thread, "schedstat");
        must(file && fscanf(file, "%lf", &ns) == 1, "schedstat of a thread");
        fclose(file);
        all += ns;
    }
    return all / 1e3;
}
