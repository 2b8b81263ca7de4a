"""`run`: rounds on the targets' own timetables."""
