"""The publishing databases of a site's instances in PostgreSQL: one schema each, in one database of
the site.
"""
