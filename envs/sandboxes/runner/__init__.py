"""The runner: a separate process that runs agents' programs, each in a forked group of processes that is called a cell.

It is started as a script (`python -I -S .../runner`), on this machine or in a container, so modules in this folder may
import only the standard library and each other. The trainer's side is `local` and `framed`, one folder up.

    __main__             starts the supervisor or a zygote
    supervisor           the event loop: connections, deadlines, zygotes
    connections          a client's stream of requests
    sessions             the requests of a connection: start, run, put, fork and others
    runs, measures       one run, and its result
    zygotes, cells       the supervisor's records of zygotes, of cells and of the processes in them
    zygote               a warm interpreter that is forked for every cell; also the init of a session's cell
    console, orders      runs the agent's code inside its cell; its orders and answers
    wire, output, files, preload             frames, captured output, a session's files, modules to import in advance
    cell, root, seccomp, landlock, rlimits, cgroups, hierarchies, watching, syscalls, probe      the isolation
"""
