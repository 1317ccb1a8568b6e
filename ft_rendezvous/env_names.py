"""Names of environment variables that more than one package uses. Reads none of them."""

MARKER_VARIABLE = "FT_AGENT_ID"
"""Marks every process of one agent, so that the reaper finds the agent's workers."""

PROGRESS_VARIABLE = "FT_PROGRESS"
"""The file with the progress cells of a node's workers, in the environment of a worker."""

INBOX_VARIABLE = "FT_INBOX"
"""The address of the agent's inbox, in the environment of a worker."""

PROGRESS_FROM_VARIABLE = "FT_PROGRESS_FROM"
"""What counts as progress of a worker, in its environment, if hangs are watched for."""

NURSERY_VARIABLE = "FT_NURSERY"
"""The address of the node's nursery, in the environment of a worker. Empty: there is none."""
