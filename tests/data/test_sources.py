import hashlib
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import datasets
import pytest

from distill.data.sources import (
    Chat,
    CodeSource,
    Completion,
    Document,
    HubSource,
    JsonlSource,
    MixtureSource,
)
from distill.data.sources.code import is_library_code, module_of
from distill.data.sources.splits import assign_splits, stable_hash
from distill.errors import UserError


def jsonl(path: Path, rows: list) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass") + b"\n")
    return path


def user(content):
    return {"role": "user", "content": content}


def called(name, arguments):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


ODD_ROWS = [
    ({"prompt": ""}, "skipped"),
    ({"prompt": None}, "skipped"),
    ({"prompt": "  \n"}, "skipped"),
    ({"prompt": "one \ud83d two"}, "repaired"),
    ({"prompt": "nul\0nul"}, "repaired"),
    ({"prompt": "\0"}, "skipped"),
    ({"prompt": "a" * 1_000_000}, "skipped"),
    ({"prompt": "one\r\ntwo"}, "repaired"),
    ({"prompt": 5}, "skipped"),
    ({"prompt": ["x"]}, "skipped"),
    ({"text": "document"}, "kept"),
    ({"messages": [user("no assistant turn")]}, "kept"),
    ({"messages": [{"role": "assistant", "content": "no user turn"}]}, "skipped"),
    ({"messages": []}, "skipped"),
    ({"messages": [user("x"), {"role": "system", "content": "last"}]}, "skipped"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "skipped"),
    ({"messages": [{"role": "user", "content": None}]}, "skipped"),
    ({"turns": []}, "skipped"),
    ({"turns": ["first", 2]}, "skipped"),
    ({"other": "field"}, "skipped"),
    ("{not json", "skipped"),
    ("[1, 2]", "skipped"),
    ("null", "skipped"),
    ('{"prompt": "\udc80"}', "skipped"),
    ("[" * 100_000, "skipped"),
    ({"prompt": "id with \ud83d", "id": "\ud83d"}, "repaired"),
    ('{"prompt": "big", "n": ' + "1" * 4400 + "}", "skipped"),  # JSON-BIGINT
    ({"messages": [user("q"), called("f", "{}")]}, "kept"),
    ({"messages": [user("q"), called("f", "{not json")]}, "skipped"),
    ({"messages": [user("q2"), {"role": "assistant", "tool_calls": "f"}]}, "skipped"),
    ({"messages": [user("q3"), {"role": "assistant", "reasoning_content": "no say"}]}, "skipped"),
    ({"prompt": "q4", "tools": [{"name": "f\ud83d"}]}, "repaired"),
    ({"prompt": "q5", "tools": "[{"}, "skipped"),
    ({"prompt": "q6", "tools": {"name": "f"}}, "skipped"),
    ({"text": "raw with tools", "tools": [{"name": "f"}]}, "skipped"),
]


def test_odd_rows_are_skipped_or_repaired_and_named_by_line(tmp_path):
    """DATA-ROWS."""
    path = jsonl(tmp_path / "odd.jsonl", [odd for odd, _ in ODD_ROWS])
    source = JsonlSource(str(path))
    source.check()
    got = dict.fromkeys(range(1, len(ODD_ROWS) + 1), "kept")
    got |= {p.line: p.outcome for p in source.problems}
    assert got == {line: want for line, (_, want) in enumerate(ODD_ROWS, start=1)}
    assert len(list(source.rows())) == sum(want != "skipped" for _, want in ODD_ROWS)
    for row in source.rows():
        assert not re.search(r"\\r|\\x00", repr([row, row.content]))
        str([row, row.content]).encode("utf-8")


def test_crlf_file_with_bom_and_blank_lines_reads_like_any_other(tmp_path):
    path = tmp_path / "dos.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n')
    source = JsonlSource(str(path))
    assert len(list(source.rows())) == 2
    assert source.problems == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "does not exist"),
        ("", "is empty"),
        ("\n\n", "is empty"),
        ('{"prompt": ""}\n{', "no usable row, 2 bad ones .line 1: `prompt` is empty"),
    ],
)
def test_useless_file_is_refused_by_check(tmp_path, content, says):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=says):
        JsonlSource(str(path)).check()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x1f\x8b\x08\x00", "is compressed with gzip: unpack it with `gunzip"),
        ('{"prompt": "a"}\n'.encode("utf-16"), "is UTF-16 text, not UTF-8"),
        ('{"prompt": "a"}\n'.encode("utf-16-be"), "is UTF-16 text, not UTF-8"),
        ('{"prompt": "a"}\n'.encode("utf-32"), "is UTF-32 text, not UTF-8"),
        (b'{\n "prompt": "a"\n}\n', "has objects over several lines"),
        (b"PAR1\x15\x04", "is Parquet: use data=hub"),
        (b'[\n{"prompt": "a"},\n{"prompt": "b"}\n]\n', "is a JSON array, not one object a line"),
        (b'\xef\xbb\xbf[{"prompt": "a"}, {"prompt": "b"}]', "is a JSON array"),
    ],
)
def test_a_file_of_another_kind_is_named_for_what_it_is(tmp_path, content, says):
    """ROW-FILES."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=says):
        JsonlSource(str(path)).check()


def test_a_number_too_long_to_read_is_named_with_its_line(tmp_path):
    """JSON-BIGINT."""
    path = jsonl(tmp_path / "n.jsonl", [{"prompt": "a"}, '{"n": ' + "1" * 4400 + "}"])
    [problem] = JsonlSource(str(path)).problems
    assert (problem.line, problem.reason) == (2, "a number of more than 4300 digits")


def test_calls_reach_the_template_with_their_arguments_as_objects(tmp_path):
    """ROW-TOOLS: as a server hands them to it; datasets and requests hold JSON text."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = [
        {"messages": [user("a"), called("f", '{"x": 1}')], "tools": tools},
        {"messages": [user("b"), called("f", {"x": 1})], "tools": json.dumps(tools)},
    ]
    for found in JsonlSource(str(jsonl(tmp_path / "c.jsonl", rows))).rows():
        [call] = found.content.messages[1]["tool_calls"]
        assert call == {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
        assert found.content.messages[1]["content"] == ""
        assert found.content.tools == tuple(tools)


def test_rows_that_differ_in_their_tools_are_two(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": "a", "tools": [{"name": "f"}]}]
    source = JsonlSource(str(jsonl(tmp_path / "c.jsonl", rows)))
    found = list(source.rows())
    assert len({row.id for row in found}) == 2
    before = "Chat(messages=({'role': 'user', 'content': 'a'},), follow_ups=())"
    assert found[0].id == f"{stable_hash(before):016x}"  # as it was before there were tools
    assert source.problems == []


def test_a_job_opens_and_parses_each_file_once(tmp_path, monkeypatch):
    """check, rows, problems and fingerprint of one instance share one reading."""
    train = jsonl(tmp_path / "t.jsonl", [{"prompt": f"p{i}"} for i in range(20)])
    held_out = jsonl(tmp_path / "e.jsonl", [{"prompt": "new"}, {"prompt": ""}])
    opened, parsed = [], []
    io_open, loads = io.open, json.loads

    def counting_open(file, *arguments, **options):
        opened.append(str(file))
        return io_open(file, *arguments, **options)

    def counting_loads(text):
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(io, "open", counting_open)
    monkeypatch.setattr(json, "loads", counting_loads)
    source = MixtureSource(
        {
            "mine": {"weight": 1, "source": JsonlSource(str(train), str(held_out))},
            "code": {"weight": 1, "source": CodeSource(str(Path(json.__file__).parent))},
        }
    )
    for _ in range(2):
        source.check()
        assert len(list(source.rows())) > 20
        assert len(source.problems) == 1
        print_of = source.fingerprint()["parts"]
    assert sorted(name for name in opened if name.endswith(".jsonl")) == [str(held_out), str(train)]
    assert len(parsed) == 22
    monkeypatch.undo()
    assert print_of["mine"]["sha256"] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (train, held_out)
    ]


def test_fields_become_their_kind_of_content(tmp_path):
    rows = [
        {"prompt": "p1", "text": "t"},
        {"prompt": "p2", "format": "completion"},
        {"prompt": "p3", "turns": ["p3", "then"], "domain": "chat", "id": 7},
        {"text": "raw"},
        {"messages": [user("m")], "response": "r"},
        {"prompt": "p4", "response": None, "reference": "never read"},
    ]
    by_content = {
        row.content: row
        for row in JsonlSource(str(jsonl(tmp_path / "k.jsonl", rows))).rows()
        if not isinstance(row.content, Chat)
    }
    assert set(by_content) == {Completion("p2"), Document("raw")}
    chats = {
        row.content.messages[0]["content"]: row
        for row in JsonlSource(str(tmp_path / "k.jsonl")).rows()
        if isinstance(row.content, Chat)
    }
    assert [len(chats[key].content.messages) for key in ("p1", "m", "p3", "p4")] == [2, 2, 1, 1]
    assert chats["p3"].content.follow_ups == ("then",)
    assert (chats["p3"].id, chats["p3"].domain) == ("7", "chat")


def test_duplicates_are_named_and_never_counted_twice(tmp_path):
    rows = [
        {"prompt": "a", "id": "x"},
        {"prompt": "b", "id": "x"},
        {"prompt": "a", "id": "y"},
        {"prompt": "c"},
        {"prompt": "c"},
    ]
    source = JsonlSource(str(jsonl(tmp_path / "d.jsonl", rows)))
    assert len(list(source.rows())) == 2
    assert [problem.line for problem in source.problems] == [2, 3, 5]


def test_evaluation_file_is_never_trained_on(tmp_path):
    train = jsonl(tmp_path / "t.jsonl", [{"prompt": f"p{i}", "text": "x"} for i in range(50)])
    held_out = jsonl(tmp_path / "e.jsonl", [{"prompt": "p3", "text": "y"}, {"prompt": "new"}])
    source = JsonlSource(str(train), str(held_out))
    rows = list(source.rows())
    assert sum(row.split == "evaluation" for row in rows) == 2
    assert not {r.group for r in rows if r.split != "evaluation"} & {
        r.group for r in rows if r.split == "evaluation"
    }
    assert [(p.file, p.line) for p in source.problems] == [(str(train), 4)]


def test_splits_are_stable_disjoint_and_about_the_asked_size():
    groups = [f"module{i}" for i in range(2000)]
    splits = assign_splits(groups, 0.1, 0.2)
    assert splits == assign_splits(reversed(groups), 0.1, 0.2)
    assert {g: splits[g] for g in groups[:1000]} == assign_splits(groups[:1000], 0.1, 0.2)
    sizes = [list(splits.values()).count(name) for name in ("evaluation", "validation")]
    assert sizes == pytest.approx([400, 200], abs=60)


@pytest.mark.parametrize("number", range(3, 30))
def test_a_few_rows_still_fill_every_split(number):
    splits = assign_splits([f"row{number}-{i}" for i in range(number)], 0.05, 0.05)
    assert set(splits.values()) == {"train", "validation", "evaluation"}


def test_fractions_that_leave_nothing_are_refused(tmp_path):
    path = jsonl(tmp_path / "p.jsonl", [{"prompt": "a"}])
    with pytest.raises(UserError, match="below 1"):
        JsonlSource(str(path), validation_fraction=0.5, evaluation_fraction=0.5).check()


def test_fingerprint_follows_content_and_not_place(tmp_path):
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    for path in (one, two):
        jsonl(path, [{"prompt": "a"}])
    before = JsonlSource(str(one)).fingerprint()
    assert before == JsonlSource(str(two)).fingerprint()
    jsonl(one, [{"prompt": "b"}])
    assert before != JsonlSource(str(one)).fingerprint()


def test_standard_library_is_split_by_module():
    source = CodeSource()
    source.check()
    rows = list(source.rows())
    modules = {
        split: {row.group for row in rows if row.split == split}
        for split in ("train", "validation", "evaluation")
    }
    assert len(modules["evaluation"]) >= 10
    assert len(modules["validation"]) >= 5
    assert not modules["train"] & modules["evaluation"]
    assert not modules["train"] & modules["validation"]
    assert not modules["validation"] & modules["evaluation"]
    for one, other in zip(rows, CodeSource().rows(), strict=True):
        assert replace(one, kept=one.content) == replace(other, kept=other.content)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("json/decoder.py", True),
        ("site-packages/x.py", False),
        ("ctypes/test/a.py", False),
        ("encodings/cp1252.py", False),
        ("html/entities.py", False),
        ("html/parser.py", True),
        ("_sysconfigdata__linux_x86_64-linux-gnu.py", False),
    ],
)
def test_tests_tables_and_packages_are_not_library_code(path, kept):
    assert is_library_code(Path(path)) is kept


def test_private_helpers_go_with_their_public_module():
    names = ["_pydecimal.py", "_collections_abc.py", "json/decoder.py", "__future__.py", "_abc.py"]
    got = [module_of(Path(name)) for name in names]
    assert got == ["decimal", "collections", "json", "__future__", "abc"]


def test_code_of_a_folder(tmp_path):
    with pytest.raises(UserError, match="no Python file"):
        CodeSource(str(tmp_path)).check()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_bytes(b"\xff")
    source = CodeSource(str(tmp_path))
    source.check()
    assert [row.content for row in source.rows()] == [Document("x = 1\n")]
    assert [problem.file for problem in source.problems] == ["b.py"]


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_hub_dataset_from_a_local_folder(tmp_path, kind, tmp_path_factory):
    table = datasets.Dataset.from_dict({"question": ["a", "b", "", "d"], "kind": list("xyxy")})
    if kind == "parquet":
        table.to_parquet(tmp_path / "train.parquet")
    else:
        table.to_json(tmp_path / "train.jsonl")
    source = HubSource(str(tmp_path), columns={"prompt": "question", "domain": "kind"})
    source.check()
    rows = list(source.rows())
    assert sorted((r.content.messages[0]["content"], r.domain) for r in rows) == [
        ("a", "x"),
        ("b", "y"),
        ("d", "y"),
    ]
    assert [problem.line for problem in source.problems] == [3]
    assert len(list(HubSource(str(tmp_path), {"prompt": "question"}, max_rows=2).rows())) == 2
    before = source.fingerprint()
    moved = shutil.copytree(tmp_path, tmp_path_factory.mktemp("moved") / "there")
    assert HubSource(str(moved), columns=source.columns).fingerprint() == before


def test_hub_dataset_with_other_columns_or_absent(tmp_path):
    datasets.Dataset.from_dict({"question": ["a"]}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"no column \['prompt'\].*question"):
        HubSource(str(tmp_path), columns={"prompt": "prompt"}).check()
    with pytest.raises(UserError, match=r"data.source.name"):
        HubSource(str(tmp_path / "absent")).check()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "row",
    [
        DEEP,
        '{"prompt": "x", "tools": [{"a": %s}]}' % ("[" * 900 + "]" * 900),
        {"prompt": "x", "tools": DEEP},
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "tool_calls": [{"function": {"arguments": DEEP}}]},
            ]
        },
    ],
    ids=["line", "tools", "tools as text", "arguments"],
)
def test_a_row_nested_too_deeply_is_named_with_its_line(tmp_path, row):
    [problem] = JsonlSource(str(jsonl(tmp_path / "n.jsonl", [{"prompt": "a"}, row]))).problems
    assert (problem.line, problem.reason) == (2, "nested too deeply")


def test_a_role_that_is_no_text_is_named_with_its_line(tmp_path):
    rows = [{"prompt": "a"}, {"messages": [{"role": ["user"], "content": "x"}]}]
    [problem] = JsonlSource(str(jsonl(tmp_path / "r.jsonl", rows))).problems
    assert (problem.line, problem.outcome) == (2, "skipped")


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        ({"prompt": "a", "functions": [{"name": "f"}], "empty": None}, ["functions"]),
        ({"prompt": "a", "text": "b", "response": "c"}, ["response"]),
        ({"turns": ["a", "b"], "text": "c"}, ["text"]),
        ({"text": "raw", "response": "c"}, ["response"]),
        ({"messages": [{"role": "user", "content": "a", "weight": 0}]}, ["messages.weight"]),
        ({"messages": [{"role": "user", "content": "a"}], "prompt": "b"}, ["prompt"]),
        ({"prompt": "a", "text": "b", "id": 1, "domain": "d", "format": "completion"}, []),
    ],
)
def test_what_is_not_read_is_reported_once_a_file_with_its_number_of_rows(tmp_path, row, unread):
    """Nothing that a row holds is lost without a word."""
    rows = [row, {**json.loads(json.dumps(row).replace('"a"', '"z"')), "id": 2}]
    rows[1] |= {"text": "other"} if row.get("text") == "raw" else {}
    source = JsonlSource(str(jsonl(tmp_path / "u.jsonl", rows)))
    assert len(list(source.rows())) == 2
    assert [(p.outcome, p.line, p.reason) for p in source.problems] == [
        ("kept", 1, f"`{name}` is not read (rows with it: 2)") for name in unread
    ]


@pytest.mark.parametrize("feature", [datasets.Audio(), datasets.Image()])
def test_columns_that_are_no_text_are_not_decoded(tmp_path, feature):
    """Decoding them would need packages that nothing else here needs."""
    stored = {"prompt": ["a", "b"], "extra": [{"bytes": b"RIFF", "path": None}] * 2}
    table = datasets.Dataset.from_dict(stored).cast_column("extra", feature)
    table.to_parquet(tmp_path / "train.parquet")
    source = HubSource(str(tmp_path))
    assert len(list(source.rows())) == 2
    assert ["`extra` is not read" in problem.reason for problem in source.problems] == [True]


def test_files_of_a_dataset_that_differ_in_a_type_name_the_remedy(tmp_path):
    jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "n": 1}])
    jsonl(tmp_path / "b.jsonl", [{"prompt": "b", "n": "one"}])
    with pytest.raises(UserError, match=r"cannot be read: .*data=jsonl with one file") as refused:
        HubSource(str(tmp_path)).check()
    assert len(str(refused.value).splitlines()) == 1


def test_nulls_that_a_table_puts_into_tools_are_not_shown_to_the_target(tmp_path):
    """Arrow gives each object the keys of all: `f` would get `b: null`."""
    tools = [
        {"name": "f", "parameters": {"a": {"type": "int"}}},
        {"name": "g", "parameters": {"b": {"type": "text"}}},
    ]
    datasets.Dataset.from_list([{"prompt": "x", "tools": tools}]).to_parquet(tmp_path / "t.parquet")
    [row] = HubSource(str(tmp_path)).rows()
    assert list(row.content.tools) == tools
