#!/usr/bin/env bash
# five.sh - runs the benchmark several times and counts how often each rule was missed
#
#   tests/bench/five.sh PROGRAM DIRECTORY [RUNS]     five runs, unless RUNS says otherwise
#
# `make bench-five` calls this. Each run leaves DIRECTORY/N.json and DIRECTORY/N.txt, what it printed. A rule is missed
# when it was missed in three of five runs, or that share of another number. The exit status says only whether all runs
# could be made.

set -eu
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
program=$1 directory=$2 runs=${3:-5}

mkdir -p "$directory"
rm -f "$directory"/*.json "$directory"/*.txt
for ((i = 1; i <= runs; i++)); do
    start=$SECONDS
    BENCH_JSON=$directory/$i.json "$program" >"$directory/$i.txt" || {
        tail -n 5 "$directory/$i.txt"
        echo "run $i failed"
        exit 1
    }
    echo "run $i of $runs: $((SECONDS - start)) s, $(jq -r '[.rules[] | .verdict] |
        "held \(map(select(. == "held")) | length), open \(map(select(. == "open")) | length), " +
        "missed \(map(select(. == "missed")) | length)"' "$directory/$i.json")"
done

echo
printf '%-8s %-22s %-14s %5s %5s %7s   %s\n' '' rule case held open missed 'figure in each run (own / the other'"'"'s)'
jq -rs --argjson runs "$runs" '
    def count($word): map(select(.verdict == $word)) | length;
    def figure: [(.time.ratio.median // empty), (.cpu.ratio.median // empty)] | map(. * 1000 | round / 1000 | tostring) | join("/");
    [.[].rules[] | .key = "\(.rule)|\(.case)"] as $all
    | reduce $all[] as $r ({keys: [], of: {}};
        if .of[$r.key] then . else .keys += [$r.key] end | .of[$r.key] += [$r])
    | . as $groups | .keys[] | $groups.of[.]
    | [(if count("missed") * 5 >= 3 * $runs then "MISSED" else "ok" end), .[0].rule, .[0].case, count("held"), count("open"),
       count("missed"), (map(figure) | join(" "))] | @tsv' "$directory"/*.json |
    while IFS=$'\t' read -r verdict rule case held open missed figures; do
        printf '%-8s %-22s %-14s %5s %5s %7s   %s\n' "$verdict" "$rule" "$case" "$held" "$open" "$missed" "$figures"
    done

echo
echo "a parked wake-up: latency of gpusync parked by that of a handler and a condition variable, in each run"
jq -rs '
    def latency($case; $who): .rows[] | select(.case == $case and .contestant == $who) | .latency_us;
    def twice($case; $q): [.[] | latency($case; "gpusync parked")[$q] / latency($case; "handler + condvar")[$q]];
    def tell: map(. * 1000 | round / 1000) | "median \(sort | .[length / 2 | floor])   \(map(tostring) | join(" "))";
    . as $all | [.[0].rows[].case] | unique[] | select(endswith(" x 1")) as $case
    | "p50", "p95" | . as $q | "  \($case), \($q): \($all | twice($case; $q) | tell)"' "$directory"/*.json
