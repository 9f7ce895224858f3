#!/usr/bin/env bash
# librueda meets whatever a framework has loaded: it exports rueda_* and nothing else, brings its C++ library along, and
# needs no newer glibc than the oldest system that we promise.
#
#   exports_test.sh LIBRARY HEADER [--at-least]      --at-least: an older header, whose functions are all still there
set -euo pipefail
library="$1" header="$2"
newest_glibc=2.34
failed=0
fail() { echo "FAILED: $*" && failed=1; }

exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u)
declared=$(grep -o '\brueda_[a-z0-9_]*(' "$header" | tr -d '(' | sort -u |
  comm -12 - <(tr '\n' ' ' <"$header" | sed 's/;/;\n/g' | grep -o 'RUEDA_API.*' | grep -o '\brueda_[a-z0-9_]*(' | tr -d '(' | sort -u))
if [[ "${3:-}" == --at-least ]]; then
  missing=$(comm -13 <(echo "$exported") <(echo "$declared"))
  [[ -z "$missing" ]] || fail "promised and gone:" $missing
  exit $failed
fi
[[ "$exported" == "$declared" ]] || fail "exported and declared differ:" && diff <(echo "$exported") <(echo "$declared") || failed=1
! nm -D "$library" | awk '$2 == "u"' | grep . || fail "unique symbols keep a library from being unloaded and are shared with others"

needed=$(readelf -d "$library" | awk '/NEEDED/ { gsub(/[][]/, "", $NF); print $NF }')
echo "needs:" $needed
for name in $needed; do
  [[ "$name" =~ ^(libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|ld-linux.*)$ ]] || fail "needs $name"
done
glibc=$(readelf -V "$library" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1)
echo "needs glibc $glibc"
[[ "$(printf '%s\n' "$glibc" "$newest_glibc" | sort -V | tail -1)" == "$newest_glibc" ]] || fail "glibc $glibc is newer than $newest_glibc"
! readelf -V "$library" | grep -E 'GLIBCXX|CXXABI' || fail "needs libstdc++"
readelf -d "$library" | grep -q 'SONAME.*librueda\.so\.2' || fail "soname"
! readelf -d "$library" | grep -E 'RPATH|RUNPATH|TEXTREL' || fail "search path or text relocations"
exit $failed
