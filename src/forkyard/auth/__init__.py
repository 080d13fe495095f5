"""Teams, users, API keys and roles."""
