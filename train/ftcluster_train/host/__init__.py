"""Programs that a control node or another host starts by name; their code is elsewhere."""
