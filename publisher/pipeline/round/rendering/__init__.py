"""Records of pages: templates of kinds of jobs, pages of records, and another process that makes
them of a backlog.
"""
