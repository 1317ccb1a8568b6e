"""The launcher for Ray on a real Ray cluster: a head and some raylets on this machine."""
