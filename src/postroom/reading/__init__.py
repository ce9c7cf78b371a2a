"""Reads foreign bytes in a limited child process: a hostile file costs its own reading, and nothing else.

`limited` is the parent's side, `child` the process itself, `confinement` what it gives up before it reads anything.
"""
