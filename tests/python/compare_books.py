"""Holds the books of the demo's agencies against its input, which it decodes by itself.

Arguments: the table (EUC-KR, tab-separated, header line) and the directory with the books.
Prints one JSON object; `faults` is empty if every line is as it must be.
"""

import json
import pathlib
import sys

table, books = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
faults = []


def records():
    """Every line of the table as the message it must have become."""
    lines = table.read_bytes().decode("euc-kr").splitlines()
    assert lines[0] == "법정동코드\t법정동명\t폐지여부", lines[0]
    for number, line in enumerate(lines[1:], start=2):
        code, name, status = line.split("\t")
        yield {"code": code, "name": name, "status": status, "key": code[:5], "version": number}


def compare(name, expected):
    """Each line once, and of each key in the order of the table; how many there are."""
    lines = (books / f"{name}.jsonl").read_text("utf-8").splitlines()
    book = [json.loads(line) for line in lines]
    newest = {}
    for line in book:
        if line["version"] <= newest.get(line["key"], 0):
            faults.append(f"{name}: {line} came behind line {newest[line['key']]}")
        newest[line["key"]] = line["version"]
    by_version = sorted(book, key=lambda line: line["version"])
    if len(by_version) != len(expected):
        faults.append(f"{name}: {len(by_version)} lines instead of {len(expected)}")
    for line, right in zip(by_version, expected):
        if line != right:
            faults.append(f"{name}: {line} instead of {right}")
    return len(book)


everything = list(records())
existing = [record for record in everything if record["status"] == "존재"]
archive, census = compare("archive", everything), compare("census", existing)
print(
    json.dumps(
        {
            "records": len(everything),
            "existing": len(existing),
            "archive": archive,
            "census": census,
            "compared": archive + census,
            "faults": faults[:20],
        },
        ensure_ascii=False,
    )
)
