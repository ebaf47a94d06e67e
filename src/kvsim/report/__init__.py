"""Views on a recording: HTML report, figures, timelines, metrics, benchmark JSON. No logic of the simulation lives
here.
"""
