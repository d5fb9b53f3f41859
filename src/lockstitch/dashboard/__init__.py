"""The page of a job: what `lockstitch status`, `waits` and `graph` tell, live in a browser.

    values.py     what the page is told at a look, as plain values
    rows.py       a job's workers as rows of a table, with how fast their counters grow
    history.py    what became of a job: rows of those that have gone, and series for charts
    watching.py   looks at the job again and again, and tells whoever has the page open
    access.py     who may have it: a token, this host's own addresses, no page of another origin
    application.py  what is answered at which path
    serving.py    the server, which ends with the job
    static/       the page itself, built out of packaging/dashboard

Needs `starlette` and `uvicorn` (`pip install 'lockstitch[dashboard]'`). Nothing here needs torch.
"""
