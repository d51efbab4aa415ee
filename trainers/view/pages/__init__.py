"""View a run in a browser: its data (`load_episodes`), as one HTML file (`page`), or live (`viewer_server`).

These modules treat all text of an agent as hostile. Left out: curves as images and text for a terminal (`view.report`).
"""
