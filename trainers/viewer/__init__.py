"""View a run in a browser: its data (`collect`), as one HTML file (`page`), or live (`server`).

All text of an agent is treated as hostile here. Left out: curves as images and transcripts for a terminal (`report`).
"""
