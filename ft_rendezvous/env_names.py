"""Names of environment variables that more than one package uses. Reads none of them."""

MARKER_VARIABLE = "FT_AGENT_ID"
"""Marks every process that belongs to one agent, so that the reaper finds its workers."""

INBOX_VARIABLE = "FT_INBOX"
"""Holds the address of the agent's inbox, in a worker's environment."""
