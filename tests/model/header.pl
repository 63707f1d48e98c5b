#!/usr/bin/env perl
# header.pl GIVEN FAULT <gpusync.h >header.h - the header as the model checker reads it: see model.sh
#
# The code and its memory orders stay. Functions that lead to Metal, to the clock or to a text are declared only, and
# world.h or rows.c has them. Texts and tables are short, because the checker follows each byte. GIVEN and then
# FAULT, if they are not empty, are Perl that changes $_, the whole text; what changes nothing is an error.
use strict;
use warnings;

local $/;
$_ = <STDIN>;

for my $name (qw(gpusync_now_ns gpusync__copy_text gpusync__send_ulong gpusync__send_work gpusync__read_failure
                 gpusync__describe gpusync__own_error gpusync__await_goal gpusync_wait_many gpusync__wait_point
                 gpusync__foreign)) {
    s/^((?:static|GPUSYNC_API|GPUSYNC__APART)[^\n;{}]*\b\Q$name\E\([^;{}]*?\))\n\{\n.*?^\}\n/$1;\n/ms
      or die "header.pl: gpusync.h has no function $name\n";
}
s/^    char (domain|message|label|queue_label|encoder)\[\d+\];/    char $1\[1];/mg or die "header.pl: no texts\n";
s/^#define GPUSYNC__INFOS 256$/#define GPUSYNC__INFOS 2/m or die "header.pl: no infos\n";
# The checker takes these through pointers only field by field.
s/^ +\*error = oldest \? (\*oldest) : (q->record\.stuck);$/
    if (oldest) COPY_ERROR(*error, $1); else COPY_ERROR(*error, $2);/m or die;
s/^( +)(\*?error|\*wait->error|t->error|\*record|q->record\.stuck|dev->loss) = (.*);$/$1COPY_ERROR($2, $3);/mg;
s/memset\(times, 0, sizeof \*times\);/times->gpu_start_s = times->gpu_end_s = 0;/;
s/memset\(&s->waiter, 0, sizeof s->waiter\);/s->waiter.scheduler_data[0] = s->waiter.scheduler_data[1] = NULL;/ or die;
for my $fault (@ARGV) {
    my $before = $_;
    next if $fault eq '';
    eval "$fault; 1" or die "header.pl: $fault: $@";
    $_ ne $before or die "header.pl: the fault changes nothing: $fault\n";
}
print;
