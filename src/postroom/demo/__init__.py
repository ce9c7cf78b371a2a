"""The demonstration: the real product, in a home folder of its own, on stand-ins of everything outside.

`stand_ins` are Gmail with ten years of mail, a model and a web site, all simulated; `furnish` writes a home for them;
`scene` is how the story acts and looks; `steps/` are its steps, `story` their order; `house` is all of it in one
process.
The same steps are the end-to-end test, against one process and against many.
"""
