#!/usr/bin/env bash
# The installed tree as a user has it: installed_test.sh SOURCE BUILD. Installs into a folder of its
# own, builds the examples against it, runs them and the program.
set -euo pipefail
source=$1 build=$2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
usr=$tmp/usr
export OMP_NUM_THREADS=1
unset DDAEBM_PRESETS
fail() { echo "FAILED: $*"; exit 1; }

cmake --install "$build" --prefix "$usr" >/dev/null
cd "$tmp"

# The program finds its presets beside it, not in the source tree.
"$usr/bin/ddaebm" settings demo >demo.toml
mv "$usr/share/ddaebm/presets/demo.toml" "$usr/share/ddaebm/presets/other.toml"
"$usr/bin/ddaebm" settings other >/dev/null || fail "presets beside the program were not found"
"$usr/bin/ddaebm" settings demo >/dev/null 2>&1 && fail "presets were found elsewhere"
gzip -dc "$usr/share/man/man1/ddaebm.1.gz" | grep -q '^.SH COMMANDS' || fail "the manual page"

# The examples, by find_package.
cmake -S "$source/examples" -B examples -DCMAKE_PREFIX_PATH="$usr" -DCMAKE_CXX_FLAGS=-O0 \
  "${@:3}" >configure.log 2>&1 || fail "$(cat configure.log)"
cmake --build examples -j 2 >build.log 2>&1 || fail "$(cat build.log)"
examples/train helix 30 >out 2>err || fail "train: $(tail -1 err)"
grep -q '^log-density: on the helix' out || fail "train said: $(cat out)"
printf 'x,y,z\n1,0,0\n0,0,1.5\n' >rows.csv
examples/score helix rows.csv >scores
"$usr/bin/ddaebm" score helix rows.csv -o program.csv >/dev/null
paste scores <(tail -n +2 program.csv) |
  awk '{ d = $1 - $2; if (d < -1e-5 || d > 1e-5) exit 1 } END { exit NR != 2 }' ||
  fail "the example's scores are not the program's: $(paste scores program.csv)"
examples/score nowhere rows.csv 2>err && fail "a run that is not there"
grep -q 'not a run folder' err || fail "the error says: $(cat err)"
examples/method nce 30 >out 2>err || fail "method: $(tail -1 err)"
grep -q '^mass' out || fail "method said: $(cat out)"

# A program by pkg-config; light headers, since the examples have tried the others.
cat >light.cpp <<'CPP'
#include <cstdio>
#include <ddaebm/config.h>
int main() {
  const auto file = ddaebm::ConfigFile::parse("method = \"vera\"\n", "text");
  std::puts(file.text("method", "ddaebm").c_str());
}
CPP
export PKG_CONFIG_PATH=$(dirname "$(find "$usr" -name ddaebm.pc)")
# shellcheck disable=SC2046
c++ light.cpp $(pkg-config --cflags --libs ddaebm) -o light
[ "$(./light)" = vera ] || fail "pkg-config"

# Versions by tag.
version() { cmake -DSOURCE="$source" -P version.cmake 2>&1 | sed 's/^-- //'; }
cat >version.cmake <<'CMAKE'
include(${SOURCE}/cmake/Version.cmake)
version_by_tag(${CMAKE_CURRENT_LIST_DIR}/repository 0.0.1 version)
message(STATUS ${version})
CMAKE
commit() { git -C repository -c user.name=a -c user.email=a@b commit -q --allow-empty -m "$1"; }
[ "$(version)" = 0.0.1 ] || fail "version without a repository: $(version)"
git init -q repository && commit one
[ "$(version)" = 0.0.1 ] || fail "version without a tag: $(version)"
git -C repository tag v9.8.7
[ "$(version)" = 9.8.7 ] || fail "version at a tag: $(version)"
commit two
version | grep -qE '^9\.8\.7\+1\.g[0-9a-f]+$' || fail "version after a tag: $(version)"
echo "installed: the program, three examples, pkg-config"
