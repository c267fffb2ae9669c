"""The text side: tokenizer, chat template, streaming detokeniser, stop strings.

`tokenizer`  text to ids and back; content can never become a control token
`template`   chat messages to prompt ids through the checkpoint's own template
`stream`     ids to append-only text, with stop strings cut out
"""

from clover_rt.text.stream import StopStrings, Stream
from clover_rt.text.template import Template
from clover_rt.text.tokenizer import Tokenizer

__all__ = ["StopStrings", "Stream", "Template", "Tokenizer"]
