"""The runner: a process of its own that runs agents' programs, each in a forked cell.

It is started as a script (`python -I -S .../runner`), on this machine or in a container, so nothing in this folder may
import anything but the standard library and its siblings. The trainer's half is `local` and `framed`, one folder up.

    __main__             what to be: supervisor or zygote
    supervisor           the loop: connections, deadlines, zygotes
    connections          a client's stream of requests
    sessions             what a connection can ask for
    runs, measures       one run, and what it came to
    zygotes, cells       what the supervisor knows of zygotes, of cells and of processes in them
    zygote               a warm interpreter that is forked for every cell; the init of a cell that stays
    console, orders      runs the agent's code inside its cell; what it is told and answers
    wire, output, files, preload                                       frames, capped output, files, warm imports
    cell, root, seccomp, landlock, rlimits, cgroups, watching, syscalls, probe  the walls
"""
