"""Reads foreign bytes in a limited child process: a hostile file can only make its own reading fail.

`limited` is the parent's side, `child` the process itself, `confinement` what it gives up before it reads anything.
"""
