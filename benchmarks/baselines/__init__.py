"""What ft_rendezvous is compared with."""
