"""Benchmarks of ft_rendezvous: `python -m benchmarks --quick`.

Machines are noisy. So the ratio between contenders that took turns within one run counts, and absolute numbers are
context. A result is checked before its time counts. What each module owns:

    read, form, codec,  one benchmark each: its cases, and how a result is checked
    placement
    scale, costs        a model of larger worlds than we can form, and the costs it rests on
    recovery            one too; in restarting, losing and end_to_end, what happens to its nodes
    groups              one too; in group_training real processes, in group_steps what a loss costs the others
    on_ray              one too; in ray_training a real cluster, what is started on it, and the loss of a machine
    steady, state       one too; in idle, a world in which nothing happens
    baselines           what we compare with: other rendezvous, and bare store operations
    measure             cases, taking turns, medians and ratios
    children            processes that serve or form worlds, and end with the sample
    consumption         what a process has used of CPU and memory
    crowd               many nodes as threads, released together
    load                thousands of nodes in one thread, on non-blocking sockets
    machine, report     facts of the machine; tables for the terminal and files of results
    runs                results of earlier runs
    pages, plots        these results as text and as pictures
    publish             `python -m benchmarks report`
    registry            the list of benchmarks
"""
