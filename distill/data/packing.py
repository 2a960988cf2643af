"""Several rows in one sequence, each a document of its own: no padding to the longest row.

B sequences, S tokens of the longest sequence.
"""

from typing import Any

import torch
from torch import Tensor

from distill.data.batching import lay_out
from distill.data.corpus import SPLITS


def collate_packed(
    rows: list[dict[str, Any]], row_index: list[int], split: str, width: int
) -> dict[str, Tensor]:
    """Rows laid out in sequences of at most `width` tokens.

    position_ids [B, S] begin anew with every document, which is how attention is told them apart;
    rows [B, S] is each token's row of the split; padding on the right is position 0 of no row.
    """
    sequences = lay_out([len(row["input_ids"]) for row in rows], width)
    longest = max(sum(len(rows[n]["input_ids"]) for n in held) for held in sequences)
    input_ids, position_ids, owners = torch.zeros(3, len(sequences), longest, dtype=torch.long)
    supervised = torch.zeros(len(sequences), longest, dtype=torch.bool)
    real = torch.zeros(len(sequences), longest, dtype=torch.long)
    for line, held in enumerate(sequences):
        start = 0
        for number in held:
            row = rows[number]
            place = torch.arange(len(row["input_ids"]))
            document = slice(start, start + len(place))
            input_ids[line, document] = torch.as_tensor(row["input_ids"]).long()
            position_ids[line, document] = place
            owners[line, document] = row_index[number]
            supervised[line, document] = place >= max(row["prompt_length"], 1)
            real[line, document] = 1
            start += len(place)
    return {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "rows": owners,
        "attention_mask": real,
        "supervised": supervised,
        "row_index": torch.tensor(row_index),
        "split": torch.tensor(SPLITS.index(split)),
    }
