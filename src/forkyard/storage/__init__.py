"""The database: engine, sessions, where SQLite and PostgreSQL differ, migrations. No domain queries."""
