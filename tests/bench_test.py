#!/usr/bin/env python3
"""bench/run.py on work that takes no time: the peer is checked and timed beside ours, tables and picture
are written where they belong, and what is finished is not measured again.

    bench_test.py DDAEBM_BENCH DDAEBM_OPERATORS"""

import contextlib
import io
import json
import sys
import tempfile
import xml.dom.minidom
from pathlib import Path
from unittest import mock

try:
    import torch  # the peers'
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
import run

PAGE = "# Page\n\n<!-- measured on cpu -->\nold\n<!-- end of cpu -->\n\nrest\n"


def bench(folder, *more):
    """What a run prints."""
    words = ["run.py", "--bench", sys.argv[1], "--operators", sys.argv[2], "--python",
             sys.executable, "--rounds", "1", "--seconds", "0.02", "--uncompiled", "--commit", "C",
             "--page", str(folder / "page.md"), *more]
    printed = io.StringIO()
    with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(printed):
        run.main()
    return printed.getvalue()


def small(cuda):
    yield run.Work("toy step", run.TOY, "step", 20)


def small_growth(cuda):
    yield ("toy step", "batch", (5, 20),
           lambda n: run.Work(f"toy step, batch {n}", run.TOY, "step", n))


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "images").mkdir()
    (folder / "page.md").write_text(PAGE)
    with (mock.patch.object(run, "CELLS", folder), mock.patch.object(run, "FAMILIES", [run.TOY]),
          mock.patch.object(run, "works", small), mock.patch.object(run, "growths", small_growth),
          mock.patch.object(run.Contest, "operators", lambda self: "operators' table")):
        first = bench(folder)
        kept = json.loads((folder / "cpu.json").read_text())
        # Nothing is timed a second time.
        with mock.patch.object(run.Contest, "turns", side_effect=AssertionError("timed again")):
            assert bench(folder) == first
            assert "| as it comes |" in bench(folder, "--only", "toy step")

# A batch of 20 is the first work.
assert "toy step, batch 20" not in kept["cells"], kept["cells"].keys()
for name in ("toy step", "toy step, batch 5"):
    turns = kept["cells"][name]["turns"]
    assert turns["ours"]["ms"][0] > 0 and turns["as it comes"]["flop_a_row"] > 1e6, turns
assert kept["cells"]["golden peer.py"], kept["cells"]
for wanted in ("| toy step | 20 | ours |", "| as it comes |", "| one thread |", "commit C",
               "| toy step: batch | ours | peer, as it comes | times ours |", "operators' table"):
    assert wanted in first, (wanted, first)

# The page keeps what is around its marks, however often it is written.
with tempfile.TemporaryDirectory() as name:
    page = Path(name) / "page.md"
    page.write_text(PAGE)
    for text in ("new", "newer"):
        run.write_page(page, "cpu", text)
    assert page.read_text() == PAGE.replace("old", "newer"), page.read_text()
    page.write_text("# no marks\n")
    try:
        run.write_page(page, "cpu", "new")
    except SystemExit as refused:
        assert "measured on cpu" in str(refused)
    else:
        raise AssertionError("a page without marks was written to")

# A peer that fails has no number, and the fastest of the others is what ours is set beside.
turns = {"ours": {"ms": [1.0]}, "slow": {"ms": [8.0, 6.0, 7.0], "flop_a_row": 5e6},
         "fast": {"ms": [4.0]}, "fast, compiled": {"error": "not begun in time"}}
assert run.best_peer(turns) == ("fast", 4.0)
work = small(False).__next__()
table = run.contest_table([(work, {"batch": 20, "turns": turns})], product=1e12)
assert "| slow | 7 ms | 2,857 |  | 1 % | 7.0 |" in table, table
assert "| fast, compiled | not begun in time |" in table, table
# 20 rows of 5 MFLOP in a millisecond are a tenth of that product's rate.
assert "| ours | **1 ms** | 20,000 |  | 10 % |" in table, table
growth = ("toy step", "batch", "slow", (5, 20), [{"batch": 5, "turns": turns}, {"batch": 20, "turns": turns}])
drawn = xml.dom.minidom.parseString(run.picture([(work, {"turns": turns})], [growth]))
assert len(drawn.getElementsByTagName("polyline")) == 2, drawn.toxml()

# What the presets say is the same as what is said in words.
known = list(run.works(True))
assert run.same_work(run.Work("another name", run.CIFAR10, "step", 64, channels=128), known) == known[2]
for other in (run.Work("wider", run.CIFAR10, "step", 64, channels=192),
              run.Work("larger images", run.CIFAR10, "step", 64, size=64)):
    assert run.same_work(other, known) is other
print("1 passed, 0 failed")
