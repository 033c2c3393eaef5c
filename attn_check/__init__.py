"""``diagnose``: what is wrong with my attention?

``python -m attn_check module:function`` does the same from a shell.
"""

from attn_check.diagnose import assert_attention, diagnose
from attn_check.report import Failure, Note, Report
from attn_check.rope import assert_rope, diagnose_rope

__all__ = [
    "Failure",
    "Note",
    "Report",
    "assert_attention",
    "assert_rope",
    "diagnose",
    "diagnose_rope",
]
