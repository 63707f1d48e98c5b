/* json.c - what was measured, as JSON: machine, date, settings, rows, rules */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench.h"
#include "device.h"

#if defined(__has_include)
#if __has_include(<jansson.h>)
#define HAVE_JANSSON 1
#endif
#endif

#ifdef HAVE_JANSSON
#include <jansson.h>

static json_t *rows, *others;

/* Tenths of a nanosecond: no reader needs more. */
static json_t *number(double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.4f", value);
    return json_real(strtod(text, NULL));
}

static json_t *number_triple(quartiles q)
{
    return json_pack("{s:o, s:o, s:o}", "p25", number(q.low), "p50", number(q.median), "p75", number(q.high));
}

static json_t *interval_object(const interval *i)
{
    return json_pack("{s:o, s:o, s:o}", "median", number(i->median), "low", number(i->low), "high", number(i->high));
}

static json_t *comparison_object(const comparison *c)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "ratio", interval_object(&c->ratio), "limit_ratio", number(1 + c->share),
                     "limit_us", number(c->us), "beyond_limit_us", interval_object(&c->excess_us));
}

void json_add_rows(const waiting_case *c, const row *table, unsigned count)
{
    unsigned n;
    if (!rows) rows = json_array();
    for (n = 0; n < count; n++) {
        const row *r = &table[n];
        json_t *latency = number_triple(r->latency);
        json_object_set_new(latency, "p95", number(r->latency_p95));
        json_object_set_new(latency, "p99", number(r->latency_p99));
        json_array_append_new(
            rows, json_pack("{s:s, s:o, s:i, s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "case", c->title, "kernel_us",
                            c->kernel_us > 0 ? json_integer((json_int_t)c->kernel_us) : json_string("mix"), "commits",
                            (int)c->commits, "turns", (int)c->turns, "contestant", r->contestant, "time_us",
                            number_triple(r->time), "time_by_gpusync", interval_object(&r->beside_gpusync.ratio),
                            "latency_us", latency, "cpu_us", number_triple(r->cpu), "engine_cpu_us",
                            number_triple(r->engine_cpu), "voluntary_switches", number_triple(r->voluntary),
                            "involuntary_switches", number_triple(r->involuntary), "gpu_us", number_triple(r->gpu)));
    }
}

void json_add_other(const char *title, const char *name, quartiles us)
{
    if (!others) others = json_array();
    json_array_append_new(others, json_pack("{s:s, s:s, s:o}", "case", title, "name", name, "us", number_triple(us)));
}

static json_t *rules_array(void)
{
    static const char *const words[] = {"held", "open", "missed"};
    json_t *array = json_array();
    unsigned i;
    for (i = 0; i < waiting_rule_count; i++) {
        const rule *r = &waiting_rules[i];
        json_t *object = json_pack("{s:s, s:s, s:s, s:s}", "rule", r->name, "case", r->title, "against", r->against,
                                   "verdict", words[r->verdict]);
        if (r->by_time) json_object_set_new(object, "time", comparison_object(&r->time));
        if (r->by_cpu) json_object_set_new(object, "cpu", comparison_object(&r->cpu));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *machine_object(void)
{
    struct utsname name;
    char model[200], kernel[200];
    must(uname(&name) >= 0, "uname");
    processor_model(model, sizeof model, name.machine);
    snprintf(kernel, sizeof kernel, "%.64s %.*s", name.sysname, (int)strcspn(name.release, "-"), name.release);
    return json_pack("{s:s, s:i, s:s, s:s}", "cpu", model, "cores", (int)sysconf(_SC_NPROCESSORS_ONLN), "kernel", kernel,
                     "compiler",
#ifdef __clang__
                     __VERSION__
#else
                     "gcc " __VERSION__
#endif
    );
}

static json_t *settings_object(void)
{
    json_t *object = json_pack("{s:s, s:s, s:b, s:i, s:b, s:b, s:o}", "device", the_device->name, "metal_device",
                               the_bench.device_name, "gpu_clock", the_bench.gpu_clock, "rounds", (int)the_bench.rounds,
                               "pinned", the_bench.program_on >= 0, "real_time", the_bench.real_time, "wake_up_us", number(the_bench.wake_up_us));
    unsigned i;
    for (i = 0; i < the_device->setting_count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_NS", the_device->settings[i].name);
        json_object_set_new(object, name, json_integer((json_int_t)the_device->settings[i].ns));
    }
    return object;
}

void json_write(void)
{
    const char *path = getenv("BENCH_JSON");
    char date[32];
    time_t now = time(NULL);
    json_t *all;
    if (!path || !*path) return;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    all = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "date", date, "seconds", number(the_bench.seconds), "machine",
                    machine_object(), "settings", settings_object(), "rows", rows ? rows : json_array(), "other_cases",
                    others ? others : json_array(), "rules", rules_array());
    must(all && json_dump_file(all, path, JSON_INDENT(1) | JSON_REAL_PRECISION(10)) == 0, path);
    json_decref(all);
    rows = others = NULL;
    printf("written: %s\n", path);
}

#else

void json_add_rows(const waiting_case *c, const row *table, unsigned count)
{
    (void)c;
    (void)table;
    (void)count;
}

void json_add_other(const char *title, const char *name, quartiles us)
{
    (void)title;
    (void)name;
    (void)us;
}

void json_write(void)
{
    printf("no jansson when this was built: no JSON\n");
}

#endif
