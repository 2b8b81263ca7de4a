"""The publishing databases of a site's instances: a schema each, in one PostgreSQL database."""
