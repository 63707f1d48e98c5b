// C++ before 20 has no names in initialisers: examples/from-0.2.sh reports these, and leaves them.
#include "gpusync.h"
#include <cstdio>

static const gpusync_spin brief = {32, 64, 100000}, long_one{32, 640, 0};

static gpusync_spin twice(const gpusync_spin &spin)
{
    return gpusync_spin{2 * spin.pause_iterations, 2 * spin.yield_iterations, 2 * spin.max_spin_ns};
}

gpusync_device_desc describe()
{
    static gpusync_spin spin = twice(brief.max_spin_ns ? brief : long_one);
    gpusync_device_desc desc = gpusync_device_desc();
    desc.spin = &spin;
    desc.log = [](void *, gpusync_log_level, const char *text) { std::puts(text); };
    return desc;
}
