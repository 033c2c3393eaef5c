"""``diagnose``: what is wrong with my attention?

``python -m attn_lib module:function`` does the same from a shell.
"""

from attn_lib.diagnosis.core import assert_attention, diagnose
from attn_lib.diagnosis.report import Failure, Note, Report
from attn_lib.diagnosis.rope import assert_rope, diagnose_rope

__all__ = [
    "Failure",
    "Note",
    "Report",
    "assert_attention",
    "assert_rope",
    "diagnose",
    "diagnose_rope",
]
