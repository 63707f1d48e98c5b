#!/usr/bin/env bash
# gpu.sh - runs the benchmark on the Vulkan device several times: a table over the runs, and two pictures
#
#   tests/bench/gpu.sh PROGRAM DIRECTORY [RUNS]     five runs, unless RUNS says otherwise
#
# `make bench-gpu` calls this. Each run leaves DIRECTORY/N.json and DIRECTORY/N.txt, what it printed. table.txt is the table
# below, which is Markdown. 1-in-flight.svg and 4-in-flight.svg show how late each way of waiting is. RUN: in front of PROGRAM.

set -eu
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
program=$1 directory=$2 runs=${3:-5}

mkdir -p "$directory"
rm -f "$directory"/*.json "$directory"/*.txt "$directory"/*.svg
for ((i = 1; i <= runs; i++)); do
    # shellcheck disable=SC2086
    BENCH_JSON=$directory/$i.json ${RUN:-} "$program" >"$directory/$i.txt" 2>&1 || {
        cat "$directory/$i.txt"
        echo "run $i failed"
        exit 1
    }
    # What the program says of itself comes once
    [ "$i" -gt 1 ] || sed '/ waits a round$/,$d' "$directory/1.txt"
    echo "run $i of $runs: $(grep -m1 -oE 'load before: .*' "$directory/$i.txt"), after $(grep -oE '^[0-9.]+ s; load: .*' "$directory/$i.txt")"
done
[ -s "$directory/1.json" ] || { echo "gpu.sh: no JSON without jansson, and so no table"; exit 1; }

# A line for each case and contestant, in their order: length, in flight, contestant, what the GPU took, then late p50, late p95
# and CPU, each as median, least and most of the runs
jq -rs '
    def over: sort | [(if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end), .[0], .[-1]];
    . as $runs
    | .[0].rows[] | . as $row
    | [$runs[].rows[] | select(.case == $row.case)] as $case
    | [$case[] | select(.contestant == $row.contestant)] as $all
    | [$row.kernel_us, $row.commits, $row.contestant, ([$case[].gpu_us.p50] | over[0])]
        + ([$all[].latency_us.p50] | over) + ([$all[].latency_us.p95] | over) + ([$all[].cpu_us.p50] | over)
    | @tsv' "$directory"/*.json >"$directory/rows"

awk -F '\t' '
    function of_runs(at) { return sprintf("%.1f [%.1f, %.1f]", $at, $(at + 1), $(at + 2)) }
    BEGIN {
        form = "| %6s | %7s | %-23s | %-28s | %-28s | %-28s |\n"
        printf form, "asked", "took us", "in flight: way", "late p50 us [least, most]", "late p95 us [least, most]", "CPU us [least, most]"
        print "| --: | --: | --- | --- | --- | --- |"
    }
    { printf form, $1, sprintf("%.0f", $4), $2 ": " $3, of_runs(5), of_runs(8), of_runs(11) }' "$directory/rows" >"$directory/table.txt"
echo
cat "$directory/table.txt"
echo

picture() { # IN_FLIGHT
    local output=$directory/$1-in-flight.svg device driver note='' n=0 name
    local -a colours=('#b03030' '#e07840' '#d4a017' '#30507a' '#3a8fb7' '#4a9a50' '#777777')
    awk -F '\t' -v flight="$1" '$2 == flight' "$directory/rows" >"$directory/work"
    [ -s "$directory/work" ] || return 0
    device=$(jq -r '.settings.device | split("; ") | .[0]' "$directory/1.json")
    driver=$(jq -r '.settings.device | split("; ") | "\(.[1]); \(.[2])"' "$directory/1.json")
    [ "$1" = 1 ] || ! grep -q '^So it tells of pending work together' "$directory/1.txt" ||
        note="The driver tells of pending work together: that is what shows here."
    {
        echo "set terminal svg size 1000,600 font 'DejaVu Sans,13' background '#ffffff'"
        echo "set output '$output'"
        echo "set label 1 '$1 in flight. $device' at screen 0.02, 0.96 font ',15' noenhanced"
        echo "set label 2 'No Apple GPU. $driver. Points: p50, bars: up to p95, medians of $runs runs.' at screen 0.02, 0.915 font ',11' textcolor '#777777' noenhanced"
        echo "set label 3 '$note' at graph 0.02, 0.96 font ',11' textcolor '#b03030'"
        echo "set xlabel 'length of the work, us: asked for, and in brackets what it took' offset 0, -0.7"
        echo "set ylabel 'GPU'.\"'\".'s end to the return of the wait, us'"
        echo "set tmargin at screen 0.87; set bmargin at screen 0.15; set lmargin at screen 0.09; set rmargin at screen 0.74"
        echo "set logscale xy; set border 3; set tics nomirror out"
        echo "set key at screen 0.99, 0.6 right center spacing 1.5 samplen 2 noenhanced"
        echo "set grid ytics lt 1 lw 1 lc rgb '#e0e0e0'"
        # The points of one length stand side by side.
        awk -F '\t' '
            !($1 in took) { took[$1] = $4; tics = tics (tics == "" ? "" : ", ") sprintf("\"%s\\n(%.0f)\" %s", $1, $4, $1) }
            NR == 1 || $1 < least { least = $1 }
            NR == 1 || $1 > most { most = $1 }
            NR == 1 || $5 < low { low = $5 }
            NR == 1 || $8 > high { high = $8 }
            END {
                print "set xtics (" tics ")"
                high *= 1.3; low = (low > 0.1 ? low : 0.1) / 1.2; tics = ""
                count = split(high / low > 20 ? "1 2 5" : "1 1.5 2 3 4 5 7", step, " ")
                for (k = -1; k < 8; k++)
                    for (i = 1; i <= count; i++)
                        if (step[i] * 10 ^ k >= low && step[i] * 10 ^ k <= high) tics = tics (tics == "" ? "" : ", ") step[i] * 10 ^ k
                print "set ytics (" tics ")"
                printf "set xrange [%g:%g]\nset yrange [%g:%g]\n", least / 1.7, most * 1.7, low, high
            }' "$directory/work"
        printf 'plot'
        awk -F '\t' '!seen[$3]++ { print $3 }' "$directory/work" | while IFS= read -r name; do
            awk -F '\t' -v name="$name" -v n=$n '$3 == name { print $1 * 1.06 ^ (n - 3), $5, $8 }' "$directory/work" >"$directory/work.$n"
            printf "%s '%s' using 1:2:2:3 with yerrorbars pt %d ps 0.8 lw 1.5 lc '%s' title '%s', '' using 1:2 with lines lw %s lc '%s' notitle" \
                "$([ $n -eq 0 ] || echo ,)" "$directory/work.$n" $((n + 4)) "${colours[n % 7]}" "$name" \
                "$([[ $name == gpusync* ]] && echo 2 || echo 1)" "${colours[n % 7]}"
            n=$((n + 1))
        done
        echo
    } >"$directory/plot"
    gnuplot "$directory/plot"
    rm -f "$directory"/plot "$directory"/work*
    echo "drawn: $output"
}

picture 1
picture 4
rm -f "$directory/rows"
