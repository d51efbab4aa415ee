"""Programs that try what a sandbox must not let them, each of which gets its way where there is no sandbox.

A program is a function whose source is sent; it prints `given["token"]`, or a secret that it should not have read, when
it has got through. `families` imports all of them; `judging` says what each must come to.
"""
