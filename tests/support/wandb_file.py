"""A reader of the offline files of Weights & Biases: a LevelDB log of protocol buffers."""

import json

BLOCK, FILE_HEADER, HEADER = 1 << 15, 7, 7  # bytes; a header has checksum (4), length (2) and kind (1)
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # kinds: a whole record, or which part of one


def read_records(path):
    """Returns the records of a file run-ID.wandb."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts, found = path.read_bytes(), FILE_HEADER, b"", []
    while at + HEADER <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # a header is not divided
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        if at + HEADER + length > len(content):
            break  # is still being written
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        parts += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            found.append(Record.FromString(parts))
            parts = b""
    return found


def read_history(path):
    """Returns the values {name: value} of each call of `run.log`."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in read_records(path)
        if record.HasField("history")
    ]


def read_config(path):
    """Returns the config of the run, {name: value}."""
    found = {}
    for record in read_records(path):
        updates = [*record.config.update, *record.run.config.update]
        found |= {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in updates}
    return found


def has_ended(path):
    """Returns whether the file contains the record of the end of the run."""
    return exit_code(path) is not None


def exit_code(path):
    """Returns the exit code in the record of the end of the run, or None if the record is missing."""
    codes = [record.exit.exit_code for record in read_records(path) if record.HasField("exit")]
    return codes[-1] if codes else None
