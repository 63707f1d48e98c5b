#!/usr/bin/env perl
# plant.pl - reads mutants.txt for mutants.sh
#
#   plant.pl LIST HEADER >COPY     a copy of the header with all faults: the environment variable MUTANT chooses one
#   plant.pl LIST HEADER list      a line for each fault: NUMBER, tab, programs
#
# A function with faults becomes several: one as it is, one for each fault, and one that calls the chosen one. So all
# faults are compiled at once. Says which texts are not in their function exactly once, and fails.
use strict;
use warnings;

my ($list, $header, $lists) = @ARGV;

sub whole {
    open my $file, '<', $_[0] or die "$_[0]: $!\n";
    local $/;
    return scalar <$file>;
}

my $text = whole($header);
my $impl = index $text, '>>impl --';
my (%functions, %seen);
my $bad = 0;
sub complain { print STDERR "fault $_[0]: $_[1]\n"; $bad = 1 }

for my $fault (split /\n(?==)/, whole($list)) {
    next if $fault !~ /^= \d/;
    $fault =~ /^= (\d+) (\w+):((?: \w+)+| \?)\n/ or die "malformed: $fault\n";
    my ($n, $name, $programs) = ($1, $2, $3);
    my $old = join "\n", map { s/^- //r } grep /^- /, split /\n/, $fault;
    my $new = join "\n", map { s/^\+ ?//r } grep /^\+/, split /\n/, $fault;
    my ($from, $end) = (0, 0);
    ($from, $end) = ($-[0], $+[0]) if $text =~ /^(?![\s#\/}])[^\n;={]*\b$name\([^;{]*\n\{\n.*?\n\}\n/ms;
    my $body = substr $text, $from, $end - $from;
    my $count = () = $body =~ /\Q$old\E/g;
    complain($n, 'the number is there twice') if $seen{$n}++;
    complain($n, "no function $name") if $from < $impl;
    complain($n, "its text is in $name $count times") if $old eq '' || $count != 1;
    $functions{$from} //= {name => $name, body => $body};
    push @{$functions{$from}{faults}}, [$n, $body =~ s/\Q$old\E/$new/r];
    print "$n\t$programs\n" if $lists;
}
exit $bad if $bad || $lists;

# A variant of the function, under another name, for this file alone.
sub variant {
    my ($body, $name, $number) = @_;
    $body =~ s/\b$name\(/${name}__$number(/;
    return $body =~ s/^(?:GPUSYNC_API|GPUSYNC__SELDOM) /static /r;
}

for my $from (sort { $b <=> $a } keys %functions) {
    my ($name, $body, $faults) = @{$functions{$from}}{qw(name body faults)};
    my ($head, $arguments) = $body =~ /^([^{]*?\b$name\((.*?)\))\n\{/s;
    die "$name: a variable number of arguments\n" if $arguments =~ /\.\.\./;
    # The last word of each, before brackets: no argument here is a pointer to a function that is not a typedef.
    my $names = $arguments eq 'void' ? '' : join ', ', map { /(\w+)\s*(?:\[\w*\])?\s*$/ } split /,/, $arguments;
    my $cases = join '', map { "    case $_->[0]: return ${name}__$_->[0]($names);\n" } @$faults;
    my $all = join '', "$head;\n", map { variant($_->[1], $name, $_->[0]) } [0, $body], @$faults;
    $all .= "$head\n{\n    switch (gpusync__mutant) {\n$cases    default: return ${name}__0($names);\n    }\n}\n";
    substr $text, $from, length $body, $all;
}
my $chooser = <<'END';
static int gpusync__mutant;
static __attribute__((constructor)) void gpusync__choose_mutant(void)
{
    const char *text = getenv("MUTANT");
    gpusync__mutant = text ? atoi(text) : 0;
}
END
$text =~ s/(#if GPUSYNC_OBJC\n.*?#include <time.h>\n)/$1$chooser/s or die "nowhere to choose a fault\n";
print $text;
