#!/usr/bin/env perl
# limit.pl - runs a command, and ends it with all its children when its time is over: macOS has no timeout(1)
#
#   tests/limit.pl SECONDS COMMAND...
#
# The exit status is the command's; 124 when its time was over, 127 when it could not be started, 128 and the number of
# the signal that ended it. What is left 5 s after SIGTERM gets SIGKILL. A process that hangs in the kernel outlives
# that too, and is left behind after 5 s more.
use strict;
use warnings;
use POSIX qw(WNOHANG setpgid);

my $seconds = shift;
my $child   = fork;
die "limit.pl: fork: $!\n" unless defined $child;
if ($child == 0) {
    setpgid(0, 0);
    { no warnings 'exec'; exec { $ARGV[0] } @ARGV; }
    print STDERR "limit.pl: $ARGV[0]: $!\n";
    POSIX::_exit(127);
}
setpgid($child, $child);    # both do it, so that it is done before either goes on

# The children may be another limit.pl with a process group of its own: that one ends its group at SIGTERM.
sub stop {
    my $status = shift;
    for my $signal ('TERM', 'KILL') {
        kill $signal, -$child;
        for (1 .. 50) {
            waitpid($child, WNOHANG);
            exit $status unless kill 0, -$child;    # the group is empty
            select undef, undef, undef, 0.1;
        }
    }
    exit $status;
}
$SIG{ALRM} = sub { stop(124) };
$SIG{HUP} = $SIG{INT} = $SIG{TERM} = sub { stop(130) };
alarm $seconds;
waitpid $child, 0;
exit($? & 127 ? 128 + ($? & 127) : $? >> 8);
