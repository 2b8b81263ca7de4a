"""The daemon: rounds on the targets' own timetables. The only room that knows APScheduler.

`cron.py` reads crontab's notation; `timetable.py` says when a target's next round is, from what the ledger knows;
`clockwork.py` is APScheduler as we use it; `daemon.py` joins them with signals and systemd, whose protocol is `systemd.py`.
"""
