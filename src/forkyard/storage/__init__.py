"""The database: engine, sessions, the points where SQLite and PostgreSQL differ, migrations. No domain queries."""
