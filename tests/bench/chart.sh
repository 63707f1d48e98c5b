#!/usr/bin/env bash
# chart.sh - draws latency against processor time, a picture per kernel length, from the benchmark's JSON
#
#   tests/bench/chart.sh FILE.json DIRECTORY [PICTURES]
#
# `make bench-chart` calls this. One commit a wait, or COMMITS=10. The pictures are DIRECTORY/waiting-KERNEL.svg. What those
# of 150 us and 1 ms show goes to PICTURES/waiting.json, from which PICTURES/pictures.py draws its own.

set -eu
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
json=$1 directory=$2 pictures=${3:-} commits=${COMMITS:-1}
[ -s "$json" ] || {
    echo "chart.sh: there is no $json: call make bench first, or name another file: BENCH_JSON=FILE"
    exit 1
}

width=900 height=600          # of a picture
left=80 right=870 top=55 bottom=525 # of the plot in it, from the upper left corner

# What to draw: "axis", where both begin and end; "point", its place and whether it is gpusync's; "label", its place in
# pixels, and how the text lies there; "line", from point to label. A label takes the first of some places around its point
# where it covers nothing.
lay_out() { # lines "CPU LATENCY NAME"
    LC_ALL=C awk -F '\t' -v left=$left -v right=$right -v top=$top -v bottom=$bottom '
    function log10(x) { return log(x) / log(10) }
    function down(x, k) { k = int(log10(x)); if (k > log10(x)) k--; return k }
    function decade(x, up, k, i) { # the next of 1, 2, 5 times a power of ten
        k = 10 ^ down(x)
        if (up) { for (i = 1; i <= 3; i++) if (x <= k * step[i]) return k * step[i]; return 10 * k }
        for (i = 3; i >= 1; i--) if (x >= k * step[i]) return k * step[i]
    }
    function covered(x1, y1, x2, y2, i) {
        if (x1 < left + 3 || x2 > right - 3 || y1 < top + 3 || y2 > bottom - 3) return 1
        for (i = 1; i <= boxes; i++) if (x1 < bx2[i] && x2 > bx1[i] && y1 < by2[i] && y2 > by1[i]) return 1
        return 0
    }
    # Does a line touch a point or a label on its way, but for the point where it begins?
    function crosses(x1, y1, x2, y2, i, x, y) {
        for (i = 1; i < 20; i++) {
            x = x1 + (x2 - x1) * i / 20; y = y1 + (y2 - y1) * i / 20
            if ((x - x1) ^ 2 + (y - y1) ^ 2 > 121 && covered(x, y, x, y)) return 1
        }
        return 0
    }
    # The direction in which there are fewest of the points nearby: to the right where there are none
    function away(i, j, dx, dy, near, sx, sy) {
        for (j = 1; j <= n; j++) {
            dx = x[i] - x[j]; dy = y[j] - y[i]; near = dx * dx + dy * dy
            if (j == i || near > 150 ^ 2) continue
            sx += dx / (near + 1); sy += dy / (near + 1); crowd[i] += 1 / (near + 1)
        }
        return sx || sy ? atan2(sy, sx) : 0
    }
    function box(x1, y1, x2, y2) { boxes++; bx1[boxes] = x1; by1[boxes] = y1; bx2[boxes] = x2; by2[boxes] = y2 }
    BEGIN { step[1] = 1; step[2] = 2; step[3] = 5 }
    {
        n++; cpu[n] = $1 > 0.1 ? $1 : 0.1; late[n] = $2 > 0.1 ? $2 : 0.1; name[n] = $3
        if (n == 1 || cpu[n] < cmin) cmin = cpu[n]
        if (n == 1 || cpu[n] > cmax) cmax = cpu[n]
        if (n == 1 || late[n] < lmin) lmin = late[n]
        if (n == 1 || late[n] > lmax) lmax = late[n]
    }
    END {
        cmin = decade(cmin / 1.15, 0); cmax = decade(cmax * 1.15, 1); lmin = decade(lmin / 1.15, 0); lmax = decade(lmax * 1.15, 1)
        print "axis\t" cmin "\t" cmax "\t" lmin "\t" lmax
        for (i = 1; i <= n; i++) {
            x[i] = left + (right - left) * log(cpu[i] / cmin) / log(cmax / cmin)
            y[i] = bottom - (bottom - top) * log(late[i] / lmin) / log(lmax / lmin)
            print "point\t" cpu[i] "\t" late[i] "\t" (name[i] ~ /^gpusync/) "\t" name[i]
            box(x[i] - 6, y[i] - 6, x[i] + 6, y[i] + 6)
        }
        for (i = 1; i <= n; i++) { crowd[i] = 0; away_of[i] = away(i) }
        for (done = 1; done <= n; done++) { # the point that stands most alone has the first choice
            i = 0
            for (j = 1; j <= n; j++) if (!has[j] && (!i || crowd[j] < crowd[i])) i = j
            has[i] = 1
            wide = 7.3 * length(name[i]); placed = 0
            for (careful = 1; !placed && careful >= 0; careful--)
            for (far = 11; !placed && far < 240; far += 10)
                for (turn = 0; !placed && turn < 24; turn++) {
                    angle = away_of[i] + (turn % 2 ? 1 : -1) * int((turn + 1) / 2) * 3.14159265 / 12
                    cx = x[i] + far * cos(angle); cy = y[i] - far * sin(angle)
                    right_of = cos(angle) > 0.3; left_of = cos(angle) < -0.3
                    x1 = right_of ? cx : left_of ? cx - wide : cx - wide / 2
                    if (covered(x1, cy - 8, x1 + wide, cy + 8)) continue
                    if (careful && far > 11 && crosses(x[i], y[i], cx, cy)) continue
                    placed = 1
                    box(x1, cy - 8, x1 + wide, cy + 8)
                    how = right_of ? "left" : left_of ? "right" : "center"
                    print "label\t" cx "\t" cy "\t" (name[i] ~ /^gpusync/) "\t" name[i] "\t" how
                    for (k = 1; far > 11 && k < 20; k++) { # nothing may cover the line either
                        lx = x[i] + (cx - x[i]) * k / 20; ly = y[i] + (cy - y[i]) * k / 20
                        box(lx - 2, ly - 2, lx + 2, ly + 2)
                    }
                    if (far == 11 && sin(angle) ^ 2 < 0.1) continue
                    print "line\t" x[i] "\t" y[i] "\t" cx "\t" (how != "center" ? cy : cy < y[i] ? cy + 7 : cy - 7)
                }
        }
    }'
}

picture() { # KERNEL OUTPUT
    local kernel=$1 output=$2 work=$directory/work
    mkdir -p "$work"
    jq -r --arg kernel "$kernel" --argjson commits "$commits" '.rows[]
        | select((.kernel_us | tostring) == $kernel and .commits == $commits)
        | [.cpu_us.p50, .latency_us.p50, .contestant] | @tsv' "$json" | lay_out >"$work/layout"
    grep -q ^point "$work/layout" || return 0
    awk -F '\t' '$1 == "point" && $4 == 0 { print $2, $3 }' "$work/layout" >"$work/others"
    awk -F '\t' '$1 == "point" && $4 == 1 { print $2, $3 }' "$work/layout" >"$work/own"
    local title
    title="kernel of $kernel us"
    [ "$kernel" != mix ] || title="unpredictable mix of 5 us to 3 ms"
    {
        echo "set terminal svg size $width,$height font 'DejaVu Sans,13' background '#ffffff'"
        echo "set output '$output'"
        echo "h = $height; w = $width"
        echo "set lmargin at screen $left./w; set rmargin at screen $right./w"
        echo "set tmargin at screen 1 - $top./h; set bmargin at screen 1 - $bottom./h"
        echo "set title '$title, $commits commit$([ "$commits" = 1 ] || echo s) a wait' font ',15'"
        echo "set xlabel 'processor time of the process for a turn, us'"
        echo "set ylabel 'GPU'.\"'\".'s end to the return of the wait, median, us'"
        jq -r '"set label \"softmetal, no GPU. \(.machine.cpu), \(.machine.cores) cores, \(.date[0:10])" +
            (if .settings.pinned then ", pinned" else "" end) +
            "\" at screen 0.965, 0.925 right font \",10\" textcolor \"#777777\""' "$json"
        echo "set logscale xy; unset key; set border 3; set tics nomirror out"
        echo "set grid xtics ytics mxtics mytics lc '#e4e4e4', lc '#f2f2f2'"
        awk -F '\t' -v h=$height -v w=$width '
            $1 == "axis" { print "set xrange [" $2 ":" $3 "]; set yrange [" $4 ":" $5 "]"
                printf "set xtics ("; ticks($2, $3); printf ")\nset ytics ("; ticks($4, $5); print ")" }
            $1 == "label" { printf "set label \"%s\" at screen %.5f, %.5f %s font \",12\" textcolor \"%s\"\n", $5,
                $2 / w, 1 - $3 / h, $6, $4 ? "#b03030" : "#222222" }
            $1 == "line" { printf "set arrow from screen %.5f, %.5f to screen %.5f, %.5f nohead lc \"#aaaaaa\" back\n",
                $2 / w, 1 - $3 / h, $4 / w, 1 - $5 / h }
            function ticks(from, to, k, i, n, comma, s) {
                n = split(to / from > 20 ? "1 2 5" : "1 1.5 2 3 4 5 7", s, " ")
                for (k = -3; k < 7; k++) for (i = 1; i <= n; i++)
                    if (s[i] * 10 ^ k >= from * 0.999 && s[i] * 10 ^ k <= to * 1.001) {
                        printf "%s\"%g\" %g", comma, s[i] * 10 ^ k, s[i] * 10 ^ k; comma = ", " } }' "$work/layout"
        echo "plot '$work/others' title 'others' with points pt 7 ps 0.9 lc '#30507a', '$work/own' title 'gpusync' with points pt 7 ps 1.1 lc '#b03030'"
    } >"$work/plot"
    gnuplot "$work/plot"
    echo "drawn: $output"
}

mkdir -p "$directory"
for kernel in $(jq -r '[.rows[].kernel_us | tostring] | unique | .[]' "$json"); do
    picture "$kernel" "$directory/waiting-$kernel.svg"
done
rm -rf "$directory/work"
if [ -n "$pictures" ]; then
    mkdir -p "$pictures"
    jq --argjson commits "$commits" '{date, machine, settings, rows: [.rows[]
        | select((.kernel_us == 150 or .kernel_us == 1000) and .commits == $commits)]}' "$json" |
        jq -r '"{\"date\": \(.date | @json),\n \"machine\": \(.machine | tojson),\n \"settings\": \(.settings | tojson),\n \"rows\": [\n" +
            ([.rows[] | "  " + tojson] | join(",\n")) + "\n ]}"' >"$pictures/waiting.json"
    python3 -B "$pictures/pictures.py"
    echo "drawn in $pictures from waiting.json: waiting-150.svg, waiting-1000.svg"
fi
