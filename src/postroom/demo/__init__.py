"""The demonstration: the real product, in a temporary home folder, with everything outside simulated.

`stand_ins` are Gmail with ten years of mail, a model and a web site, and a home that points to them;
`demo_session` is how the steps act and look; `archive_steps` and `decision_steps` are the steps, `story` their
order in one process. The same steps are the end-to-end test, against one process and against many.
"""

from __future__ import annotations
