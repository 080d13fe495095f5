"""The command line: `forkyard`, and `aenv` for scripts written for AgentENV."""
