"""The contract of the control node and the hosts; both packages carry it. Standard library only."""
