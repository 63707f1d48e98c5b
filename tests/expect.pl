#!/usr/bin/env perl
# expect.pl - has an example printed what tests/expect/NAME.txt asks for?
#
#   tests/expect.pl EXPECTED OUTPUT STATUS FORM
#   tests/expect.pl --plant EXPECTED OUTPUT STATUS FORM
#
# OUTPUT is the file with what the example printed, STATUS its exit status. FORM is where it ran:
#
#   softmetal   work fails on purpose, and takes its time
#   device      a real device
#   no-times    one that tells no times of the GPU
#   no-metal4   one without Metal 4
#   no-device   there is none
#   fast, slow  a real device; its speed is no reason to print other lines
#   mac         any of device, no-times, no-metal4, no-device: the example finds out
#
# A line of EXPECTED is the name of a form, or of several ("device,no-times"), blanks, and a regular expression. Each of
# them has to match a line of the output, in order. `all` is every form in which the example runs. A form that EXPECTED
# does not name has the lines of `device`. Those of no-metal4 and no-device say why the example is skipped. Then its
# status is 77, else 0.
#
# Exit status: STATUS, if all is as expected. Else 1, and the reason is printed.
#
# With --plant each line that was asked for is exchanged, one at a time, and that has to be seen. Ends with one line
# "N passed, N failed".
use strict;
use warnings;

my %skips = map { $_ => 1 } qw(no-metal4 no-device);
my @mac   = qw(device no-times no-metal4 no-device);
my %known = map { $_ => 1 } @mac, qw(softmetal fast slow all);

my $plant = @ARGV && $ARGV[0] eq '--plant' && shift;
@ARGV == 4 or die "expect.pl: the first lines say how it is called\n";
my ($file, $log, $status, $form) = @ARGV;
$known{$form} || $form eq 'mac' or die "expect.pl: no such form: $form\n";

sub lines_of {
    open my $in, '<', $_[0] or die "$_[0]: $!\n";
    chomp(my @lines = <$in>);
    return @lines;
}

my (@expected, %named);
for (lines_of($file)) {
    my ($names, $expression) = /^(\S+)\s+(\S.*)$/ or die "$file: not a form and an expression: $_\n";
    my %of = map { $_ => 1 } split /,/, $names;
    for (keys %of) { $known{$_} or die "$file: no such form: $_\n" }
    @named{keys %of} = values %of;
    push @expected, [\%of, $expression];
}

sub expressions_of {
    my $form = $named{$_[0]} ? $_[0] : 'device';
    return map { $_->[1] } grep { $_->[0]{$form} || ($_->[0]{all} && !$skips{$form}) } @expected;
}

# The line that each expression has found. They end before the first one that found none.
sub places {
    my ($output, @expressions) = @_;
    my ($at, @places) = (0);
    for my $expression (@expressions) {
        $at++ while $at < @$output && $output->[$at] !~ /$expression/;
        last if $at == @$output;
        push @places, $at++;
    }
    return @places;
}

# What is wrong with this output: '' is nothing.
sub wrong {
    my ($output, $form) = @_;
    my @expressions = expressions_of($form);
    my @places      = places($output, @expressions);
    my $skipped     = $named{$form} && $skips{$form} ? 77 : 0;
    return "$file has nothing for $form"       if !@expressions;
    return "exit status $status, not $skipped" if $status != $skipped;
    return '' if @places == @expressions;
    return 'from line ' . (@places ? $places[-1] + 2 : 1) . " of its output on, nothing matches: $expressions[@places]";
}

# That of the first form, where it is none of several.
sub wrong_on_a_mac {
    my ($output) = @_;
    my @reasons = map { wrong($output, $_) } @mac;
    return (grep { !$_ } @reasons) ? '' : $status == 77 ? 'skipped for no reason that is expected' : $reasons[0];
}

my @output = lines_of($log);
my $reason = $form eq 'mac' ? wrong_on_a_mac(\@output) : wrong(\@output, $form);
if (!$plant) {
    print "$reason\n" if $reason;
    exit($reason ? 1 : $status);
}

my ($passed, $failed) = (0, 0);
sub count {
    my ($good, $text) = @_;
    print "$text\n" if !$good;
    $good ? $passed++ : $failed++;
}
count(!$reason, $reason);
count(!wrong_on_a_mac(\@output), 'on a Mac: ' . wrong_on_a_mac(\@output));
for my $place ($reason ? () : places(\@output, expressions_of($form))) {
    my @other = @output;
    $other[$place] = 'something else';
    count(wrong(\@other, $form) && wrong_on_a_mac(\@other), "nothing asks for this line: $output[$place]");
}
print "$passed passed, $failed failed\n";
exit($failed ? 1 : 0);
