"""View a run in a browser: its data (`load_episodes`), as one HTML file (`page`), or live (`viewer_server`).

All text of an agent is treated as hostile here. Left out: curves as images and transcripts for a terminal (`report`).
"""
