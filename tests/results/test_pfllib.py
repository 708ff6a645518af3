"""What docs/ says of the comparison with PFLlib is so, and its figures are of these methods."""

import json
import re

import compare_with_pfllib
import documents

COMPARED = json.loads((documents.RESULTS / "compared_with_pfllib.json").read_text("utf-8"))


def test_weights_differ_by_no_more_than_the_page_says():
    page = (documents.ROOT / "docs" / "methods.md").read_text("utf-8")
    said = float(re.search(r"differs by more than (\S+)", " ".join(page.split())).group(1))
    runs = [run for method in COMPARED["methods"].values() for run in method["runs"]]
    largest = max(run["largest_difference"] for run in runs)
    assert said / 10 < largest <= said
    # What moves so little would agree in any case.
    assert min(run["largest_move"] for run in runs) > 1e5 * largest
    assert re.fullmatch("[0-9a-f]{40}", COMPARED["revision"])


def test_the_figures_are_of_the_methods_and_the_rounds_of_the_program():
    assert COMPARED["rounds"] == compare_with_pfllib.ROUNDS == 3
    for name, (_, differences) in compare_with_pfllib.METHODS.items():
        method = COMPARED["methods"][name]
        assert method["differences"] == differences
        assert [run["participants"] for run in method["runs"]] == [4, 3]
    assert COMPARED["methods"].keys() == compare_with_pfllib.METHODS.keys()
