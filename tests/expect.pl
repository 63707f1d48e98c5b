#!/usr/bin/env perl
# expect.pl - has an example printed what tests/expect/NAME.txt asks for?
#
#   tests/expect.pl EXPECTED OUTPUT STATUS FORM
#
# OUTPUT is the file with what the example printed, STATUS its exit status. FORM is where it ran:
#
#   softmetal   the software device, which fails on demand
#   device      a real device, or one that pretends to be: also fast, slow
#   no-times    one that tells no times of the GPU
#   no-metal4, no-device   what there is not; an example that needs it is skipped: its status is 77
#   mac         any of device, no-times, no-metal4, no-device: the example finds out
#
# A line of EXPECTED is a form, blanks, and a regular expression, which has to match a line of the output, in order.
# `all` is every form in which the example runs. A form that EXPECTED does not name has the lines of `device`.
#
# Exit status: STATUS, if all is as expected. Else 1, and the reason is printed.
use strict;
use warnings;

@ARGV == 4 or die "expect.pl: the first lines say how it is called\n";
my ($file, $log, $status, $form) = @ARGV;

sub lines_of {
    open my $in, '<', $_[0] or die "$_[0]: $!\n";
    chomp(my @lines = <$in>);
    return @lines;
}

my @expected = map { [/^(all|softmetal|device|no-times|no-metal4|no-device) +(\S.*)$/] } lines_of($file);
die "$file: not a form and an expression: line $_\n" for map { $_ + 1 } grep { !@{ $expected[$_] } } 0 .. $#expected;
my %named = map { $_->[0] => 1 } @expected;
my @output = lines_of($log);

sub wrong { # '' is nothing
    my $form = $named{$_[0]} ? $_[0] : 'device';
    my $skips = $form =~ /^no-(metal4|device)$/;
    my @asked = map { $_->[1] } grep { $_->[0] eq $form || $_->[0] eq 'all' && !$skips } @expected;
    return "$file has nothing for $form" if !@asked;
    return "exit status $status" if $status != ($skips ? 77 : 0);
    for (@output) { shift @asked if @asked && /$asked[0]/ }
    return @asked ? "nothing of the output, or of what is left of it, matches: $asked[0]" : '';
}

my @reasons = map { wrong($_) } $form eq 'mac' ? qw(device no-times no-metal4 no-device) : $form;
exit $status if grep { $_ eq '' } @reasons;
print "$reasons[0]\n";
exit 1;
